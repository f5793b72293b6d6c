"""Recordings over HTTP, by OpenAI's own client."""

import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import pytest
from listening import client, listening

from mmaccel import speech
from mmaccel.errors import AudioError, SettingError
from mmaccel.serve.endpoint import FILES, Left
from mmaccel.serve.forms import Upload
from mmaccel.speech.serving import transcriptions
from mmaccel.speech.stream.events import Final
from mmaccel.uploads.decoder import check_samples


@pytest.fixture(scope="module")
def made(recording, listener):
    return speech.transcribe(recording, listener.opened)


@pytest.fixture(scope="module")
def ask(listener):
    with listening(listener) as (_, address):
        yield client(address).audio.transcriptions


def test_the_text_is_that_of_a_stream(ask, recording, made):
    answer = ask.create(model="moonshine-tiny", file=recording)
    assert answer.text == made.text and len(made.text.split()) > 10


def test_other_forms(ask, recording, made, tmp_path):
    assert ask.create(model="moonshine-tiny", file=recording, response_format="text") == f"{made.text}\n"
    for form in ("srt", "vtt"):
        made.save(tmp_path / f"talk.{form}")
        told = ask.create(model="moonshine-tiny", file=recording, response_format=form)
        assert told == (tmp_path / f"talk.{form}").read_text(encoding="utf-8")


def test_words_have_their_times(ask, recording, made):
    words = ["word", "segment"]
    told = ask.create(
        model="moonshine-tiny", file=recording, response_format="verbose_json", timestamp_granularities=words
    )
    assert [(w.word, w.start, w.end) for w in told.words] == [(w.text.strip(), w.start, w.end) for w in made.words]
    assert [part.text for part in told.segments] == [part.text for part in made.segments]
    for part in told.segments:  # by bounds of OpenAI's Whisper
        assert part.avg_logprob > -1.0 and part.no_speech_prob < 0.6 and 0 < part.compression_ratio < 2.4
        assert part.temperature == part.seek == 0
    assert told.duration == pytest.approx(9.98, abs=0.2)
    few = ask.create(model="moonshine-tiny", file=recording, response_format="verbose_json", language="en-US")
    assert few.words is None
    assert told.language == few.language == "en", "it is the checkpoint of English"


@pytest.mark.parametrize(
    ("told", "heard", "only", "expected"),
    (
        ("German", ["", "de"], "", "de"),
        ("German", [], "", "de"),
        (None, ["fr"], "", "fr"),
        ("auto", [], "", "unknown"),
        (None, [""], "", "unknown"),
        ("en", [""], "en", "en"),
    ),
)
def test_the_language_is_the_one_that_was_heard(told, heard, only, expected):
    recognizer = SimpleNamespace(language=told, adapter=SimpleNamespace(only_language=only))
    segments = [Final("text", (), 0.0, 1.0, language=language) for language in heard]
    assert transcriptions._language(SimpleNamespace(segments=segments), recognizer) == expected


def test_an_english_model_takes_english(ask, recording, made):
    for language in ("en", "en-US"):
        assert ask.create(model="moonshine-tiny", file=recording, language=language).text == made.text


def test_a_stream_of_events_has_the_same_text(ask, recording, made):
    events = list(ask.create(model="moonshine-tiny", file=recording, stream=True))
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == made.text
    assert [event.type for event in events[-2:]] == ["transcript.text.delta", "transcript.text.done"]


BAD = (
    ({"response_format": "diarized_json"}, "response_format='diarized_json': give one of json, text"),
    ({"language": "de"}, "language='de'"),
    ({"prompt": "Kubernetes"}, "prompt='Kubernetes'"),
    ({"prompt": "x" * 2000}, "prompt has 2000 characters"),
    ({"stream": "maybe"}, "stream='maybe': it must be true or false"),
    ({"timestamp_granularities": ["nonsense"]}, "timestamp_granularities='nonsense': give segment or word"),
    ({"timestamp_granularities": ["word"]}, "timestamp_granularities with response_format='json'"),
    ({"timestamp_granularities": ["segment"], "response_format": "srt"}, "with response_format='srt': ask for"),
    ({"timestamp_granularities": ["word"], "stream": True}, "ask for 'verbose_json'"),
    ({"stream": True, "response_format": "text"}, "response_format='text' with stream=true"),
    ({"stream": True, "response_format": "srt"}, "response_format='srt' with stream=true"),
    ({"stream": True, "response_format": "vtt"}, "response_format='vtt' with stream=true"),
    ({"stream": True, "response_format": "verbose_json"}, "response_format='verbose_json' with stream=true"),
    ({"temperature": 0.7}, "temperature='0.7'"),
    ({"include": ["logprobs"]}, "'include' is not used here"),
    ({"model": "whisper-1"}, "unknown model 'whisper-1': this server has 'moonshine-tiny'"),
    ({"file": ("talk.wav", b"RIFF")}, "talk.wav is no audio file"),
    ({"file": ("talk.wav", b"")}, "talk.wav is empty"),
    # it names a file of the server, which FFmpeg would open
    ({"file": ("list.txt", b"ffconcat version 1.0\nfile /etc/passwd\n")}, "list.txt is no audio file"),
    ({"file": ("talk: \u05e9\u05dc\u05d5\u05dd.mp3", b"RIFF")}, "talk_ \u05e9\u05dc\u05d5\u05dd.mp3 is no audio file"),
    ({"file": ("\u05e9" * 300 + ".wav", b"RIFF")}, "\u05e9.wav is no audio file"),
    ({"file": ("../../x.wav/../..", b"RIFF")}, "recording is no audio file"),
)


@pytest.mark.parametrize(("asked", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_requests_say_what_is_wrong(ask, recording, asked, message):
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as error:
        ask.create(**{"model": "moonshine-tiny", "file": recording, **asked})
    assert message in error.value.body["message"]


def test_what_is_no_form_is_refused(listener):
    with listening(listener) as (_, address):
        url = f"{address}/v1/audio/transcriptions"
        for given in (
            {"json": {"file": "x"}},
            {"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}},
            {"content": b"no form", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
            {"data": {"model": "moonshine-tiny"}, "files": {"prompt": b"x"}},
        ):
            answer = httpx.post(url, **given)
            assert answer.status_code == 400 and re.search("multipart|prompt is no text", answer.text)


def test_long_recordings_are_refused(listener, recording, monkeypatch):
    monkeypatch.setattr(transcriptions, "FILES", replace(transcriptions.FILES, audio_seconds=2))
    with pytest.raises(AudioError, match="^a.wav lasts longer than 2 s"):
        listener.parse({"file": Upload("a.wav", recording.read_bytes())})


def test_an_hour_in_stereo_is_not_too_much():
    check_samples(Path("talk.mp3"), 2 * 48_000 * FILES.audio_seconds, FILES)


def test_what_nobody_waits_for_is_given_up(listener, recording):
    request = listener.parse({"file": Upload("a.wav", recording.read_bytes())})
    request.left.set()
    with pytest.raises(Left):
        listener.answer([request])


def test_a_request_leaves_the_recogniser_as_it_was(listener):
    other = listener.opened.told(silence=0.2)
    assert other.endpoint.silence == 0.2 and listener.opened.endpoint.silence != 0.2
    assert other.lock is listener.opened.lock, "they take turns with the model"
    assert other.adapter is not listener.opened.adapter
    with pytest.raises(SettingError):
        listener.opened.told(silence=-1)


def test_the_page_is_there(listener):
    with listening(listener) as (_, address):
        page = httpx.get(address)
        assert page.status_code == 200 and "Speak, and read along" in page.text
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


def test_a_file_like_object_is_taken(ask, recording, made):
    file = io.BytesIO(recording.read_bytes())
    file.name = "talk.wav"
    assert ask.create(model="moonshine-tiny", file=file).text == made.text
