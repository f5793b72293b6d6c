"""Pictures over HTTP, by OpenAI's own client."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import torch
from listening import client, listening
from PIL import Image

import mmaccel
from mmaccel.image.generation import ImageSettings
from mmaccel.image.serving import ENDPOINT, PictureRequest
from mmaccel.modality import get_modality
from mmaccel.serve.endpoint import Left

PROMPTS = ["red heart", "small pizza on green"]


@pytest.fixture(scope="module")
def painter():
    return get_modality("image").open("tiny-janus")


@pytest.fixture(scope="module")
def endpoint(painter):
    with mmaccel.accelerate(painter.target, preset="exact") as session:
        yield ENDPOINT("tiny-janus", painter, session)


@pytest.fixture(scope="module")
def ask(endpoint):
    with listening(endpoint) as (_, address):
        yield client(address)


def pictures(answer):
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one.b64_json)))) for one in answer.data]


def drawn(painter, endpoint, prompt, **settings):
    return [np.asarray(one) for one in painter.paint(endpoint.target, [prompt], ImageSettings(**settings)).pictures]


def test_a_picture_is_that_of_the_command_line(ask, painter, endpoint):
    answer = ask.images.generate(model="tiny-janus", prompt="red heart", n=2, extra_body={"seed": 7})
    got, wanted = pictures(answer), drawn(painter, endpoint, "red heart", seed=7, count=2)
    assert len(got) == 2 and all(map(np.array_equal, got, wanted))
    assert answer.size == f"{got[0].shape[1]}x{got[0].shape[0]}"


def test_settings_arrive(ask, painter, endpoint):
    given = {"seed": 7, "guidance": 1.5, "temperature": 0.5, "top_k": 9, "top_p": 0.9}
    (got,) = pictures(ask.images.generate(prompt="red heart", extra_body=given))
    assert np.array_equal(got, drawn(painter, endpoint, "red heart", **given)[0])
    assert not np.array_equal(got, drawn(painter, endpoint, "red heart", seed=7)[0])


def test_many_clients_get_their_own_pictures(ask, painter, endpoint):
    asked = [(prompt, seed) for prompt in PROMPTS for seed in (1, 2)]

    def one(what):
        return pictures(ask.images.generate(prompt=what[0], extra_body={"seed": what[1]}))[0]

    with ThreadPoolExecutor(len(asked)) as pool:
        got = list(pool.map(one, asked))
    for (prompt, seed), picture in zip(asked, got, strict=True):
        assert np.array_equal(picture, drawn(painter, endpoint, prompt, seed=seed)[0])


def test_requests_without_a_seed_share_a_batch(endpoint):
    asked = [endpoint.parse({"prompt": prompt, "n": 2}) for prompt in PROMPTS]
    assert asked[0].group == asked[1].group is not None and asked[0].size == 2
    assert endpoint.parse({"prompt": "red heart", "n": 2, "seed": 1}).group is None
    assert endpoint.parse({"prompt": "red heart", "temperature": 0.5}).group != asked[0].group
    answers = endpoint.answer(asked)
    assert [len(answer["data"]) for answer in answers] == [2, 2]


def test_clients_of_a_pipeline_get_pictures_of_their_own_prompts():
    """Those that the pipeline draws where each prompt stands once for each of its pictures."""
    painter = get_modality("image").open("tiny-amused")
    prompts = ["big red heart on yellow", "small pizza on green"]
    asked = [PictureRequest(prompt=prompt, settings=ImageSettings(count=2), seed=3) for prompt in prompts]
    answers = ENDPOINT("tiny-amused", painter, painter.target).answer(asked)
    got = [Image.open(io.BytesIO(base64.b64decode(one["b64_json"]))) for answer in answers for one in answer["data"]]
    repeated = [prompts[0], prompts[0], prompts[1], prompts[1]]
    wanted = painter.target(repeated, generator=torch.Generator().manual_seed(3)).images
    assert [picture.tobytes() for picture in got] == [picture.tobytes() for picture in wanted]


def test_the_plain_model_is_served_too(painter, endpoint):
    with endpoint.target.baseline() as plain:
        (answer,) = ENDPOINT("plain", painter, plain).answer(
            [endpoint.parse({"prompt": "small red heart on blue", "seed": 3})]
        )
    got = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))))
    assert np.array_equal(got, drawn(painter, endpoint, "small red heart on blue", seed=3)[0]), "the method is exact"


def test_values_that_ask_for_nothing_are_taken(endpoint):
    asked = dict.fromkeys(("size", "quality", "background", "moderation"), "auto")
    asked |= {"partial_images": 0, "output_compression": 100}
    neutral = endpoint.parse({"prompt": "red heart", "stream": False, "output_format": "png", **asked})
    assert neutral.settings == endpoint.parse({"prompt": "red heart"}).settings
    assert endpoint.parse({"prompt": "red heart", "size": "64x64"}).settings == neutral.settings, "its own"


def test_a_picture_that_nobody_waits_for_is_given_up(endpoint):
    request = endpoint.parse({"prompt": "red heart"})
    request.left.set()
    with pytest.raises(Left):
        endpoint.answer([request])
    other = PictureRequest(prompt="red heart", settings=ImageSettings(), seed=1)
    assert endpoint.answer([request, other]), "one of two is still there"
    assert torch.is_grad_enabled()


def test_a_plain_picture_that_nobody_waits_for_is_given_up_too(painter, endpoint):
    request = endpoint.parse({"prompt": "red heart"})
    request.left.set()
    with endpoint.target.baseline() as plain:
        with pytest.raises(Left):
            ENDPOINT("plain", painter, plain).answer([request])
        assert not painter.target.model.language_model._forward_hooks


@pytest.mark.parametrize(
    ("given", "message"),
    (
        ({"prompt": ""}, "prompt is missing"),
        ({"prompt": "x" * 5000}, "shorten it to 4000"),
        ({"prompt": "zeppelin"}, "zeppelin"),
        ({"prompt": "red heart", "n": 99}, "n=99: give a whole number from 1 to 10"),
        ({"prompt": "red heart", "response_format": "url"}, "this server takes 'b64_json' only"),
        ({"prompt": "red heart", "size": "1024x1024"}, "takes 'auto' or '64x64' only"),
        ({"prompt": "red heart", "extra_body": {"seed": -1}}, "seed=-1"),
        ({"prompt": "red heart", "extra_body": {"seed": True}}, "seed=True"),
        ({"prompt": "red heart", "extra_body": {"temperature": "hot"}}, "temperature='hot': give a number"),
        ({"prompt": "red heart", "quality": "hd"}, "quality='hd': this server takes 'auto' only"),
        ({"prompt": "red heart", "stream": True}, "stream=True: this server takes False only"),
        ({"prompt": "red heart", "stream": 0}, "stream=0: this server takes False only"),
        ({"prompt": "red heart", "partial_images": 2}, "partial_images=2: this server takes 0 only"),
        ({"prompt": "red heart", "output_compression": 50}, "output_compression=50: this server takes 100 only"),
        ({"prompt": "red heart", "style": "vivid"}, "'style' is not used here: leave it out"),
    ),
)
def test_bad_requests_say_what_is_wrong(ask, given, message):
    with pytest.raises(openai.BadRequestError) as error:
        ask.images.generate(**given)
    assert message in error.value.body["message"]
