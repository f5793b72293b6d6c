"""Clips over HTTP, by OpenAI's own client: a promise, its status, and the file."""

import time
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import diffusers
import httpx
import openai
import pytest
from listening import client, listening
from PIL import Image

import mmaccel
from mmaccel.errors import UnsupportedTargetError
from mmaccel.modality import get_modality
from mmaccel.serve.app import ServerLimits
from mmaccel.serve.endpoint import Left, Request
from mmaccel.serve.promises import SECONDS, Promises
from mmaccel.video.generation import VideoSettings, film
from mmaccel.video.serving import ENDPOINT

PROMPT = "rocket moves up, blue background"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def endpoint():
    pytest.importorskip("av", reason="needs the package av")
    pipe = get_modality("video").open("tiny-wan")
    with mmaccel.accelerate(pipe, preset="balanced") as session:
        yield ENDPOINT("tiny-wan", pipe, session)


@pytest.fixture(scope="module")
def served(endpoint):
    with listening(endpoint, key="secret") as (server, address):
        yield server, address


@pytest.fixture
def ask(served):
    return client(served[1], "secret").videos


def ended(ask, video):
    until = time.monotonic() + 60
    while video.status in ("queued", "in_progress") and time.monotonic() < until:
        time.sleep(0.05)
        video = ask.retrieve(video.id)
    return video


def frames(data, tmp_path):
    from mmaccel.vlm.input.read_video import read_video

    (tmp_path / "a.mp4").write_bytes(data)
    return read_video(tmp_path / "a.mp4", fps=8).frames


def test_a_clip_is_promised_made_and_fetched(ask, endpoint, tmp_path):
    given = {"seed": 3, "steps": 10}
    video = ask.create(model="tiny-wan", prompt=PROMPT, seconds="1", size="64x48", extra_body=given)
    assert video.object == "video" and video.status in ("queued", "in_progress") and video.prompt == PROMPT
    assert (video.seconds, video.size) == ("1", "64x48")
    video = ended(ask, video)
    assert (video.status, video.progress) == ("completed", 100)
    got = frames(ask.download_content(video.id).read(), tmp_path)
    settings = VideoSettings(seed=3, steps=10, frames=9, width=64, height=48)
    wanted = film(endpoint.target, PROMPT, settings).frames
    assert len(got) == len(wanted) == 9 and got[0].shape == (48, 64, 3)
    near = [abs(a.astype(int) - b).mean() for a, b in zip(got, map(_pixels, wanted), strict=True)]
    assert max(near) < 8, "the same clip, apart from the codec"
    again = ask.create(prompt=PROMPT, extra_body={**given, "frames": 9, "seed": 4}, size="64x48")
    other = frames(ask.download_content(ended(ask, again).id).read(), tmp_path)
    assert max(abs(a.astype(int) - b.astype(int)).mean() for a, b in zip(got, other, strict=True)) > 8


def _pixels(picture):
    import numpy as np

    return np.asarray(picture).astype(int)


def test_a_clip_that_cannot_be_made_says_why(ask):
    video = ended(ask, ask.create(prompt="zeppelin moves up", extra_body={"steps": 2}))
    assert video.status == "failed" and "zeppelin" in video.error.message
    with pytest.raises(openai.ConflictError, match="is failed"):
        ask.download_content(video.id)


def test_a_clip_that_is_deleted_is_given_up(ask, served):
    video = ask.create(prompt=PROMPT, extra_body={"steps": 500})
    running = served[0].promises.kept[video.id].future
    with pytest.raises(openai.ConflictError):
        ask.download_content(video.id)
    assert ask.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError, match="there is no video"):
        ask.retrieve(video.id)
    until = time.monotonic() + 60
    while not running.done() and time.monotonic() < until:
        time.sleep(0.05)
    assert running.done()
    assert (
        ended(ask, ask.create(prompt=PROMPT, size="32x32", seconds="1", extra_body={"steps": 1})).status == "completed"
    )


def test_a_promise_tells_the_length_of_what_was_made(ask, tmp_path):
    video = ended(ask, ask.create(prompt=PROMPT, size="32x32", extra_body={"steps": 1, "frames": 8}))
    made = frames(ask.download_content(video.id).read(), tmp_path)
    assert (video.seconds, len(made)) == ("1", 9)  # as the pipeline rounds


def test_a_clip_is_asked_for_in_json_too(served, ask):
    """As OpenAI's JavaScript client, older Python clients and curl do where no file is sent."""
    given = {"model": "tiny-wan", "prompt": PROMPT, "size": "32x32", "seconds": "1", "steps": 1, "seed": 3}
    asked = {"headers": {"Authorization": "Bearer secret"}, "timeout": 60}
    answer = httpx.post(f"{served[1]}/v1/videos", json=given, **asked)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["seconds"], answer.json()["size"]) == ("1", "32x32")
    assert ended(ask, ask.retrieve(answer.json()["id"])).status == "completed"
    refused = httpx.post(f"{served[1]}/v1/videos", json={**given, "steps": "many"}, **asked)
    assert refused.status_code == 400 and "steps='many'" in refused.text


class Sizeless:
    """A pipeline whose call names no size, and takes no callback."""

    def set_progress_bar_config(self, disable):
        """It has none."""

    def __call__(self, prompt, generator, output_type, **more):
        assert not more
        return SimpleNamespace(frames=[[Image.new("RGB", (48, 32))] * 9])


def test_a_size_that_nobody_knows_is_told_when_the_clip_is_there():
    pytest.importorskip("av", reason="needs the package av")
    served = ENDPOINT("sizeless", Sizeless(), Sizeless())
    request = served.parse({"prompt": PROMPT})
    assert served.described(request) == {"prompt": PROMPT}
    served.answer([request])
    assert served.described(request) == {"prompt": PROMPT, "seconds": "1", "size": "48x32"}


@pytest.mark.parametrize(
    "name", ("FluxPipeline", "StableDiffusionXLPipeline", "StableAudioPipeline", "LTXPipeline", "SanaVideoPipeline")
)
def test_a_pipeline_of_pictures_serves_no_clips(name):
    """They would be clips of one frame."""
    pytest.importorskip("av", reason="needs the package av")
    pipe = object.__new__(getattr(diffusers, name))
    clips = name in ("LTXPipeline", "SanaVideoPipeline")
    sound = name == "StableAudioPipeline"
    said = f"^{name} makes no clips: " + ("call it in Python" if sound else "`mmaccel batch video` writes its pictures")
    with nullcontext() if clips else pytest.raises(UnsupportedTargetError, match=said):
        ENDPOINT("some", pipe, pipe)


def test_seconds_are_those_of_the_model(tmp_path):
    pytest.importorskip("av", reason="needs the package av")
    from mmaccel.vlm.input.read_video import read_video

    pipe = type("WanPipeline", (Sizeless,), {})()  # by its name one of 16 frames a second
    served = ENDPOINT("wan", pipe, pipe)
    assert served.parse({"prompt": PROMPT, "seconds": "4"}).settings.frames == 65
    request = served.parse({"prompt": PROMPT})
    (tmp_path / "a.mp4").write_bytes(served.answer([request])[0])
    assert served.described(request)["seconds"] == "0.5"
    times = read_video(tmp_path / "a.mp4", frames=9).times
    assert float(times[-1]) == pytest.approx(0.5, abs=0.01) and len(times) == 9


def test_a_server_that_ends_gives_up_a_clip_that_nobody_can_fetch(endpoint):
    with listening(endpoint) as (server, address):
        made = client(address).videos.create(prompt=PROMPT, extra_body={"steps": 1000})
        running = server.promises.kept[made.id].future
        until = time.monotonic() + 60
        while not running.running() and time.monotonic() < until:
            time.sleep(0.02)
        began = time.monotonic()
    assert time.monotonic() - began < 60 and isinstance(running.exception(), Left)


def test_clips_wait_for_their_turn_longer_than_a_client_would(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint, "answer", lambda requests: time.sleep(0.5) or [b"a clip"])
    with listening(endpoint, ServerLimits(deadline=0.2)) as (_, address):
        ask = client(address).videos
        made = [ask.create(prompt=PROMPT) for _ in range(3)]
        assert [ended(ask, video).status for video in made] == ["completed"] * 3


def test_promises_need_the_key_and_old_ones_are_forgotten(served, monkeypatch):
    server, address = served
    kept = server.promises.kept
    number = next(iter(kept))
    assert httpx.get(f"{address}/v1/videos").status_code == 401
    assert httpx.get(f"{address}/v1/videos/{number}").status_code == 401
    assert httpx.get(f"{address}/v1/videos/{number}/content").status_code == 401
    assert httpx.delete(f"{address}/v1/videos/{number}").status_code == 401
    monkeypatch.setattr("mmaccel.serve.promises.SECONDS", -1)
    server.promises._forget()
    assert not kept


def test_an_answer_is_kept_from_when_it_is_there():
    endpoint = SimpleNamespace(name="slow", later="video", path="/v1/videos", described=lambda _: {})
    promises, slow = Promises(endpoint, None), Future()
    told = promises.add(Request(), slow)
    (promise,) = promises.kept.values()
    promise.created -= 2 * SECONDS
    assert told["expires_at"] is None
    slow.set_result(b"a clip")
    promises.add(Request(), Future())
    assert promises._json(promises.kept[told["id"]])["expires_at"] >= time.time() + SECONDS - 60
    promise.ended -= 2 * SECONDS
    promises.add(Request(), Future())
    assert told["id"] not in promises.kept


def test_only_so_many_are_kept(served, monkeypatch, ask):
    server, _ = served
    monkeypatch.setattr("mmaccel.serve.promises.KEPT", 2)
    small = {"steps": 1, "frames": 1}
    made = [ended(ask, ask.create(prompt=PROMPT, size="32x32", extra_body=small)) for _ in range(4)]
    kept = [video.id for video in made[2:]]
    assert list(server.promises.kept) == kept
    assert [video.id for video in ask.list(limit=1)] == kept[::-1], "page by page, the newest first"
    assert [video.id for video in ask.list(order="asc").data] == kept
    assert [video.id for video in ask.list(after=kept[1]).data] == kept[:1]


@pytest.mark.parametrize(
    ("given", "status", "said"),
    (
        ({"order": "up"}, 400, "order='up': say 'asc' or 'desc'"),
        *(({"limit": limit}, 400, f"limit='{limit}': say a number") for limit in (0, "all", 101, "0" * 20 + "7")),
        ({"after": "none"}, 404, "there is no video 'none'"),
    ),
)
def test_lists_that_cannot_be_made_are_refused(ask, given, status, said):
    with pytest.raises(openai.APIStatusError) as error:
        ask.list(**given)
    assert said in error.value.body["message"] and error.value.status_code == status


@pytest.mark.parametrize(
    ("given", "message"),
    (
        ({"prompt": " "}, "prompt is missing"),
        ({"size": "big"}, "size='big'"),
        ({"size": "99999x2"}, "size="),
        ({"seconds": "soon"}, "seconds='soon'"),
        ({"seconds": "4", "frames": 9}, "seconds and frames say the same"),
        ({"steps": 0}, "steps=0"),
        ({"steps": "[" * 3000}, "steps="),
        ({"frames": 300}, "frames=300: TinyWanPipeline makes at most"),
        ({"size": "4096x64"}, "width=4096: TinyWanPipeline makes at most"),
        ({"input_reference": "x"}, "'input_reference' is not used here"),
    ),
)
def test_bad_requests_say_what_is_wrong(ask, given, message):
    with pytest.raises(openai.BadRequestError) as error:
        ask.create(prompt=given.pop("prompt", PROMPT), extra_body=given)
    assert message in error.value.body["message"]
