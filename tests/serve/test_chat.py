"""Chat with pictures and videos over HTTP, by OpenAI's own client."""

import base64
import copy
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import torch
from accelerate import cpu_offload
from listening import client, listening
from PIL import Image

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.modality import get_modality
from mmaccel.serve.endpoint import Left
from mmaccel.serve.metrics import Metrics
from mmaccel.vlm.answering import ask as asked
from mmaccel.vlm.serving import ENDPOINT


@pytest.fixture(scope="module")
def opened():
    return get_modality("vlm").open("tiny-onevision")


@pytest.fixture(scope="module")
def endpoint(opened):
    with mmaccel.accelerate(opened[0], vlm.VidCom2(keep=0.5)) as session:
        yield ENDPOINT("tiny-onevision", opened, session)


@pytest.fixture(scope="module")
def chat(endpoint):
    with listening(endpoint) as (_, address):
        yield client(address).chat.completions


@pytest.fixture(scope="module")
def questions():
    return zoo.questions("tiny-onevision", 8)


@pytest.fixture(scope="module")
def whole(chat, questions):
    """The likeliest answer to the first question, in one piece."""
    return chat.create(**call(questions[0]))


WHITE = Image.new("RGB", (60, 40), "white")
FEW = {"frames": 4}  # of a clip: with all 32 an answer takes several times as long, and says no more about serving


def data_url(frames):
    """A clip as a data URL, without loss."""
    written, pictures = io.BytesIO(), [Image.fromarray(frame) for frame in frames]
    pictures[0].save(written, "WEBP", save_all=True, append_images=pictures[1:], lossless=True, duration=100)
    return "data:video/webp;base64," + base64.b64encode(written.getvalue()).decode()


def picture_url(picture):
    written = io.BytesIO()
    picture.save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def about(question, **part):
    return [{"role": "user", "content": [part, {"type": "text", "text": question}]}]


def of(one):
    return about(one.question, type="video_url", video_url={"url": data_url(one.frames)})


def call(one, **more):
    return {"model": "tiny-onevision", "messages": of(one), "max_tokens": 8, "extra_body": FEW, **more}


def test_answers_are_those_of_the_model(chat, endpoint, opened, questions):
    with ThreadPoolExecutor(len(questions)) as pool:
        got = list(pool.map(lambda one: chat.create(**call(one, extra_body={})), questions))
    for one, answer in zip(questions, got, strict=True):
        wanted, _ = asked(endpoint.target, opened[1], one.frames, [one.question], 8)
        assert answer.choices[0].message.content == wanted[0]
        assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens > 1
    right = [one.answer == answer.choices[0].message.content for one, answer in zip(questions, got, strict=True)]
    assert sum(right) >= 6, "the model sees the clips"


def test_requests_of_one_shape_share_a_batch(endpoint, questions):
    requests = [endpoint.parse(_body(one)) for one in questions[:4]]
    assert len({request.group for request in requests}) == 1 and requests[0].group is not None
    alone = [endpoint.answer([request])[0]["choices"] for request in requests]
    assert [answer["choices"] for answer in endpoint.answer(requests)] == alone
    for more in ({"temperature": 1.0}, {"stream": True}):
        assert endpoint.parse(_body(questions[0], **more)).group is None
    assert endpoint.parse(_body(questions[0], max_tokens=9)).group != requests[0].group


@pytest.mark.parametrize("fewer", ((), (vlm.VidCom2(keep=0.5),)), ids=("whole", "shortened"))
def test_a_shared_batch_is_drafted(questions, fewer):
    """What ends texts that nobody waits for looks at no other rows."""
    opened = get_modality("vlm").open("tiny-onevision")
    with mmaccel.accelerate(opened[0], vlm.FusedDraft(always=True), *fewer) as session:
        endpoint = ENDPOINT("tiny-onevision", opened, session)
        requests = [endpoint.parse(_body(one)) for one in questions[:4]]
        alone = [endpoint.answer([request])[0]["choices"] for request in requests]
        assert [answer["choices"] for answer in endpoint.answer(requests)] == alone
        assert session.report.details["accepted"] > 0 and not session.report.warnings


def test_a_processor_of_transformers_is_told_the_times(endpoint, questions, monkeypatch):
    told = {}

    def refuses(*_, **given):
        told.update(given)
        raise ValueError("told enough")

    monkeypatch.setattr(type(endpoint.processor), "__call__", refuses)
    monkeypatch.setattr(type(endpoint.processor), "video_processor", None, raising=False)
    request = endpoint.parse(_body(questions[0], frames=3))
    with pytest.raises(mmaccel.errors.PromptError, match="told enough"):
        endpoint.answer([request])
    assert told["do_sample_frames"] is False and len(told["videos"][0]) == 3
    assert str(told["video_metadata"]) == str([request.videos[0].metadata])  # which has an array in it
    assert told["video_metadata"][0]["fps"] > 1


def _body(one, **more):
    return {"messages": of(one), "max_tokens": 8, **FEW, **more}


def test_an_answer_is_streamed_while_it_is_written(chat, questions, whole):
    events = list(chat.create(**call(questions[0], stream=True)))
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text.strip() == whole.choices[0].message.content and events[-1].choices[0].finish_reason == "stop"
    assert len({event.id for event in events}) == 1


def test_a_streamed_answer_is_part_of_the_next_turn(chat, questions):
    """Its role and its text are what clients make of the pieces, one behind the other."""
    asked_for = call(questions[0], stream=True)
    deltas = [event.choices[0].delta for event in chat.create(**asked_for)]
    role, content = ("".join(getattr(delta, name) or "" for delta in deltas) for name in ("role", "content"))
    assert role == "assistant" and len(deltas) > 2
    turns = [*asked_for["messages"], {"role": role, "content": content}, {"role": "user", "content": "what moves up?"}]
    assert chat.create(**{**asked_for, "messages": turns, "stream": False}).choices[0].message.content


def test_a_stream_without_a_word_has_a_role_too(endpoint, questions):
    (end,) = endpoint.ending(endpoint.parse(_body(questions[0], stream=True)))
    assert end["choices"][0]["delta"] == {"role": "assistant"}


def test_a_stream_ends_with_its_usage_where_that_is_asked_for(chat, questions, whole):
    events = list(chat.create(**call(questions[0], stream=True, stream_options={"include_usage": True})))
    assert events[-1].choices == [] and events[-1].usage == whole.usage
    assert events[-2].choices[0].finish_reason == "stop"
    for options in ({"include_usage": 1}, {"usage": True}):
        with pytest.raises(openai.BadRequestError, match=r"send {.*include_usage.*: true}"):
            chat.create(**call(questions[0], stream=True, stream_options=options))


@pytest.mark.parametrize("temperature", (1e-40, 1e-300, 1e-5))
def test_very_cold_answers_are_the_likeliest(chat, questions, whole, temperature):
    cold = chat.create(**call(questions[0], temperature=temperature))
    assert cold.choices[0].message.content == whole.choices[0].message.content


@pytest.mark.parametrize(
    ("error", "why"),
    (
        (ValueError("the ratio of its sides must be smaller than 200"), "the ratio"),
        (StopIteration(), "its text holds a placeholder too many"),  # as processors look for what belongs to each
    ),
    ids=("of a picture", "of a text"),
)
def test_what_the_processor_refuses_is_no_failure_of_the_server(endpoint, monkeypatch, error, why):
    def refuses(*_, **more):
        raise error

    monkeypatch.setattr(type(endpoint.processor), "__call__", refuses)
    request = endpoint.parse({"messages": about("x", type="image_url", image_url={"url": picture_url(WHITE)})})
    with pytest.raises(mmaccel.errors.PromptError, match=f"processor does not take this request: {why}"):
        endpoint.answer([request])


def test_messages_longer_than_the_model_takes_are_refused(chat, endpoint, monkeypatch):
    long = {"model": "tiny-onevision", "messages": [{"role": "user", "content": "word " * 9000}], "max_tokens": 2}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="tokens long, and the model takes 8192: send fewer"):
            chat.create(**long, stream=stream)
    monkeypatch.setattr(endpoint.target.config.get_text_config(), "max_position_embeddings", 40)
    made = chat.create(**{**long, "messages": [{"role": "user", "content": "word " * 20}], "max_tokens": 99})
    assert made.usage.total_tokens <= 40, "as many words as there is room for"


def test_pictures_take_no_room_of_the_text(endpoint, monkeypatch):
    """Methods leave out most of what the processor writes for them."""
    url = picture_url(Image.new("RGB", (300, 300), "white"))
    request = endpoint.parse({"messages": about("x", type="image_url", image_url={"url": url}), "max_tokens": 3})
    monkeypatch.setattr(endpoint.target.config.get_text_config(), "max_position_embeddings", 60)
    assert endpoint.answer([request])[0]["usage"]["prompt_tokens"] > 60


def test_a_long_neighbour_cuts_no_answer_short(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint.target.config.get_text_config(), "max_position_embeddings", 100)
    monkeypatch.setattr(endpoint.target.generation_config, "eos_token_id", None)  # no answer ends by itself
    short, long = (
        endpoint.parse({"messages": [{"role": "user", "content": "word " * count}], "max_tokens": 60})
        for count in (5, 70)
    )
    with pytest.raises(mmaccel.errors.PromptError, match="each is answered alone"):
        endpoint.answer([short, long])
    assert endpoint.answer([long])[0]["usage"]["total_tokens"] <= 100 and endpoint.answer([short])


def test_answers_that_end_share_a_batch_where_not_all_that_may_come_has_room(endpoint, questions, monkeypatch):
    """By default more may come than many models have room for."""
    monkeypatch.setattr(endpoint.target.config.get_text_config(), "max_position_embeddings", 400)
    requests = [endpoint.parse({"messages": of(one), **FEW}) for one in questions[:3]]
    assert len({request.group for request in requests}) == 1 and requests[0].sampling["max_new_tokens"] > 400
    alone = [endpoint.answer([request])[0]["choices"] for request in requests]
    assert [answer["choices"] for answer in endpoint.answer(requests)] == alone
    assert {answer[0]["finish_reason"] for answer in alone} == {"stop"}


def test_failures_add_no_passes(endpoint):
    metrics, target = Metrics(), endpoint.target
    with metrics.batch(1, target):
        target.report.forwards, target.report.plain_forwards = 3, 7  # as a run leaves them
    with pytest.raises(ZeroDivisionError), metrics.batch(1, target):
        raise ZeroDivisionError
    told = metrics.text().decode().splitlines()
    assert {"mmaccel_passes_total 3.0", "mmaccel_plain_passes_total 7.0"} <= set(told)


def test_very_thin_pictures_are_seen(endpoint):
    """Of which the model's own packing leaves a second grid without a cell."""
    url = picture_url(Image.new("RGB", (20, 480), "white"))
    request = endpoint.parse({"messages": about("x", type="image_url", image_url={"url": url}), "max_tokens": 2})
    assert endpoint.answer([request])[0]["choices"][0]["message"]["role"] == "assistant"


def test_photographs_are_seen_upright(endpoint):
    written, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    WHITE.transpose(Image.Transpose.ROTATE_90).save(written, "JPEG", exif=exif)
    url = "data:image/jpeg;base64," + base64.b64encode(written.getvalue()).decode()
    request = endpoint.parse({"messages": about("x", type="image_url", image_url={"url": url})})
    assert request.pictures[0].size == WHITE.size == (60, 40)


def test_a_model_may_be_off_loaded(opened, questions):
    """Between passes accelerate leaves its weights on "meta"."""
    model, processor = opened
    away = cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    assert away.device.type == "meta"
    told = []
    for target in (copy.deepcopy(model), away):
        with mmaccel.accelerate(target, vlm.VidCom2(keep=0.5)) as session:
            served = ENDPOINT("tiny-onevision", (target, processor), session)
            told.append(served.answer([served.parse(_body(questions[0]))])[0]["choices"])
    assert told[0] == told[1]


def test_what_is_transparent_is_seen_white(endpoint):
    """Ink on a transparent ground would be black on black."""
    picture = Image.new("RGBA", (60, 40))
    picture.paste((0, 0, 0, 255), (10, 10, 20, 20))
    request = endpoint.parse({"messages": about("x", type="image_url", image_url={"url": picture_url(picture)})})
    assert sorted(request.pictures[0].getcolors()) == [(100, (0, 0, 0)), (2300, (255, 255, 255))]


def test_a_stream_that_was_cut_says_so(chat, questions):
    events = list(chat.create(**call(questions[0], stream=True, max_tokens=1)))
    assert events[-1].choices[0].finish_reason == "length"


def test_a_sampled_answer_follows_its_seed(endpoint, questions):
    def drawn(seed):
        request = endpoint.parse(_body(questions[0], temperature=100.0, seed=seed, top_p=1.0))
        return endpoint.answer([request])[0]["choices"][0]["message"]["content"]

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    "own",
    (
        {"temperature": 0.01, "top_p": 0.001, "top_k": 1},
        {"min_p": 1.0},
        {"top_h": 0.01},
        {"typical_p": 1e-6},
        {"epsilon_cutoff": 0.999},
        {"eta_cutoff": 0.999},
    ),
    ids=lambda own: " ".join(own),
)
def test_a_temperature_draws_whatever_the_checkpoint_would_cut_off(endpoint, questions, monkeypatch, own):
    """Qwen2-VL's own settings leave the likeliest word alone."""
    for name, value in own.items():
        monkeypatch.setattr(endpoint.target.generation_config, name, value)

    def drawn(**more):
        asked_for = _body(questions[0], temperature=100.0, max_tokens=3, **more)
        requests = [endpoint.parse({**asked_for, "seed": seed}) for seed in range(2)]
        return {endpoint.answer([request])[0]["choices"][0]["message"]["content"] for request in requests}

    assert len(drawn()) > 1
    assert len(drawn(top_k=1)) == 1 and len(drawn(top_p=1e-6)) == 1


def test_pictures_are_seen(endpoint, opened):
    model, processor = opened
    pixels = Image.fromarray(np.full((48, 64, 3), (250, 240, 200), np.uint8))
    messages = about("what moves up?", type="image_url", image_url={"url": picture_url(pixels)})
    (answer,) = endpoint.answer([endpoint.parse({"messages": messages, "max_tokens": 4})])
    content = [{"type": "image"}, {"type": "text", "text": "what moves up?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(images=[pixels], text=[text])
    tokens = endpoint.target.generate(**inputs, max_new_tokens=4, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    assert answer["choices"][0]["message"]["content"] == processor.batch_decode(tokens, skip_special_tokens=True)[0]
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_what_nobody_waits_for_is_given_up(endpoint, questions):
    request = endpoint.parse(_body(questions[0], max_tokens=30_000))
    request.left.set()
    with pytest.raises(Left):
        endpoint.answer([request])


# It names a file of the server, which FFmpeg would open.
PLAYLIST = "data:video/mp4;base64," + base64.b64encode(b"ffconcat version 1.0\nfile /etc/passwd\n").decode()
BAD = (
    ([], "messages is missing"),
    ([{"role": "robot", "content": "x"}], "the role 'robot'"),
    ([{"role": "user", "content": []}], "no content"),
    (about("x", type="input_audio"), "the type 'input_audio'"),
    (about("x", type="image_url", image_url={"url": "http://127.0.0.1/secret.png"}), "nothing is fetched"),
    (about("x", type="image_url", image_url={"url": "data:video/mp4;base64,AAAA"}), "image_url must hold the file"),
    (about("x", type="image_url", image_url={"url": "data:image/png;base64,####"}), "is no base64"),
    (about("x", type="image_url", image_url={"url": "data:image/png;base64,äöü"}), "only ASCII characters"),
    (about("x", type="image_url", image_url={"url": "data:image/png;base64,AAAA"}), "a picture cannot be read"),
    (about("x", type="video_url", video_url={"url": "data:video/mp4;base64,AAAA"}), "video.mp4 is no video file"),
    (about("x", type="video_url", video_url={"url": PLAYLIST}), "video.mp4 is no video file"),
    ([{"role": "user", "content": "x" * 200_001}], "more than 200000 characters"),
)


@pytest.mark.parametrize(("messages", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_requests_say_what_is_wrong(chat, messages, message):
    with pytest.raises(openai.BadRequestError) as error:
        chat.create(model="tiny-onevision", messages=messages)
    assert message in error.value.body["message"]


def test_a_picture_of_many_pixels_is_refused_before_it_is_decoded(endpoint):
    large = Image.new("1", (20_000, 20_000))
    with pytest.raises(mmaccel.errors.SettingError, match="20000x20000 pixels|cannot be read"):
        endpoint.parse({"messages": about("x", type="image_url", image_url={"url": picture_url(large)})})
