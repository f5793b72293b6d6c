"""Speech while it is spoken, over websockets: OpenAI's realtime client, Deepgram's messages, and a page."""

import base64
import json
import threading

import pytest
from listening import client, listening
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from mmaccel import speech
from mmaccel.serve.app import ServerLimits
from mmaccel.speech.serving import realtime

DONE = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


@pytest.fixture(scope="module")
def samples(recording):
    return speech.read_audio(recording)


@pytest.fixture(scope="module")
def address(listener):
    with listening(listener) as (_, address):
        yield address


def raw(samples, rate):
    """Chunks of 16-bit samples at a rate, half a second each."""
    soxr = pytest.importorskip("soxr", reason="needs the package soxr")
    held = (soxr.resample(samples.numpy(), 16_000, rate).clip(-1, 1) * 32767).astype("<i2").tobytes()
    return [held[at : at + rate] for at in range(0, len(held), rate)]


def finals(listener, chunks, rate):
    """The events of a stream of the same samples, pushed by hand."""
    with listener.opened.stream(rate, channels=1) as stream:
        events = [event for chunk in chunks for event in stream.push(chunk)] + stream.finish()
    return [event for event in events if isinstance(event, speech.Final)]


def socket(address, path, **more):
    return connect(address.replace("http", "ws") + path, **more)


def test_openai_s_client_reads_along(address, listener, samples):
    chunks, events = raw(samples, 24_000), []
    with client(address).realtime.connect(model="moonshine-tiny") as line:
        assert line.recv().type == "session.created"
        for chunk in chunks:
            line.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())
        line.input_audio_buffer.commit()
        expected = finals(listener, chunks, 24_000)
        while sum(event.type == DONE for event in events) < len(expected):
            events.append(line.recv())
    assert [event.transcript for event in events if event.type == DONE] == [final.text for final in expected]
    for done in (event for event in events if event.type == DONE):
        said = "".join(event.delta for event in events if event.type == DELTA and event.item_id == done.item_id)
        assert said and not said.startswith(" ")
        assert said.split()[0] == done.transcript.split()[0]
    first = next(event.type for event in events)
    assert first == DELTA, "words come before the end"


def test_without_turns_all_comes_at_the_commit(listener, samples):
    conversation = realtime.Conversation(listener.opened, "moonshine-tiny")
    chunks = raw(samples, 24_000)
    update = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}}
    (told,) = conversation.take(json.dumps(update))
    assert told["type"] == "session.updated" and told["session"]["audio"]["input"]["turn_detection"] is None
    for chunk in chunks:
        append = {"type": "input_audio_buffer.append", "audio": base64.b64encode(chunk).decode()}
        assert conversation.take(json.dumps(append)) == []
    told = conversation.take('{"type": "input_audio_buffer.commit"}')
    whole = " ".join(final.text for final in finals(listener, chunks, 24_000))
    assert [event["type"] for event in told] == ["input_audio_buffer.committed", DELTA, DONE]
    assert told[1]["delta"] == told[2]["transcript"] == whole
    assert conversation.take('{"type": "input_audio_buffer.commit"}')[-1]["transcript"] == ""


def test_the_beta_s_messages_are_taken_too(listener):
    conversation = realtime.Conversation(listener.opened, "moonshine-tiny")
    session = {"input_audio_format": "pcm16", "turn_detection": {"type": "server_vad", "silence_duration_ms": 300}}
    (told,) = conversation.take(json.dumps({"type": "transcription_session.update", "session": session}))
    assert told["type"] == "transcription_session.updated"
    assert conversation._listening._recognizer.endpoint.silence == 0.3
    assert conversation.take('{"type": "input_audio_buffer.clear"}')[0]["type"] == "input_audio_buffer.cleared"


BAD = (
    ("{", "is no JSON"),
    ("[1]", "no JSON object"),
    ('{"type": "response.create"}', "a message of type 'response.create'"),
    ('{"type": "input_audio_buffer.append", "audio": "##"}', "no base64"),
    ('{"type": "input_audio_buffer.append"}', "no base64"),
    ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "whole number of 16-bit samples"),
    ('{"type": "session.update", "session": 1}', "session is no JSON object"),
    ('{"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}}', "audio/pcm"),
    ('{"type": "session.update", "session": {"audio": {"input": {"format": {"rate": "x"}}}}}', "sample_rate='x'"),
    ('{"type": "session.update", "session": {"turn_detection": {"silence_duration_ms": "x"}}}', "milliseconds"),
    ('{"type": "session.update", "session": {"input_audio_transcription": {"model": "x"}}}', "unknown model 'x'"),
    ('{"type": "session.update", "session": {"input_audio_transcription": {"language": "de"}}}', "language='de'"),
)


@pytest.mark.parametrize(("message", "said"), BAD)
def test_a_bad_message_is_an_error_and_the_stream_goes_on(address, message, said):
    with socket(address, "/v1/realtime") as line:
        line.recv()
        line.send(message)
        told = json.loads(line.recv())
        assert told["type"] == "error" and said in told["error"]["message"]
        line.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(line.recv())["type"] == "input_audio_buffer.cleared"


def test_deepgram_s_messages(address, listener, samples):
    chunks, told = raw(samples, 16_000), []
    path = "/v1/listen?encoding=linear16&sample_rate=16000&interim_results=true&punctuate=true"
    with socket(address, path) as line:
        for chunk in chunks:
            line.send('{"type": "KeepAlive"}')
            line.send(chunk)
        line.send('{"type": "CloseStream"}')
        told = [json.loads(message) for message in line]
    expected = finals(listener, chunks, 16_000)
    ends = [result for result in told if result.get("is_final")]
    assert [end["channel"]["alternatives"][0]["transcript"] for end in ends] == [final.text for final in expected]
    word = ends[0]["channel"]["alternatives"][0]["words"][0]
    assert (word["start"], word["end"]) == (expected[0].words[0].start, expected[0].words[0].end)
    assert any(not result["is_final"] for result in told[:-1]), "words come before the end"
    assert told[-1]["type"] == "Metadata" and told[-1]["duration"] == pytest.approx(len(samples) / 16_000)


def test_what_is_flushed_on_the_way_keeps_its_times(address, listener, samples):
    chunks = raw(samples[: 4 * 16_000], 16_000)
    with socket(address, "/v1/listen") as line:
        for _ in range(2):
            for chunk in chunks:
                line.send(chunk)
            line.send('{"type": "Finalize"}')
        line.send(b"")
        told = [json.loads(message) for message in line]
    ends = [result for result in told if result.get("from_finalize")]
    assert len(ends) == 2 and ends[0]["channel"]["alternatives"][0]["transcript"]
    assert ends[1]["start"] == pytest.approx(ends[0]["start"] + 4, abs=1e-6) and ends[1]["speech_final"]


REFUSED = (
    ("/v1/listen?encoding=opus", {}, 400, "encoding='opus'"),
    ("/v1/listen?sample_rate=x", {}, 400, "sample_rate='x'"),
    ("/v1/listen?sample_rate=1", {}, 400, "sample_rate=1"),
    ("/v1/listen?diarize=true", {}, 400, "'diarize' is not used here"),
    ("/v1/listen?model=nova-3", {}, 400, "model='nova-3'"),
    ("/v1/realtime", {"additional_headers": {"Origin": "http://evil.example"}}, 403, ""),
)


@pytest.mark.parametrize(("path", "more", "status", "said"), REFUSED)
def test_what_is_not_taken_is_refused_before_it_is_opened(address, path, more, status, said):
    with pytest.raises(InvalidStatus) as refused:
        socket(address, path, **more)
    response = refused.value.response
    assert response.status_code == status and said in response.body.decode()


def test_a_text_among_samples_closes_the_stream(address):
    with socket(address, "/v1/listen") as line:
        line.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            line.recv()
    assert closed.value.rcvd.code == 1008 and "KeepAlive" in closed.value.rcvd.reason


def test_keys_and_the_most_streams(listener):
    with listening(listener, ServerLimits(sockets=1), key="right") as (server, address):
        with pytest.raises(InvalidStatus, match="401"):
            socket(address, "/v1/realtime")
        with pytest.raises(InvalidStatus, match="401"):
            socket(address, "/v1/listen", subprotocols=["token", "wrong"])
        with socket(address, "/v1/realtime", subprotocols=["realtime", "openai-insecure-api-key.right"]) as line:
            assert line.subprotocol == "realtime" and json.loads(line.recv())["type"] == "session.created"
            with pytest.raises(InvalidStatus, match="503"):
                socket(address, "/v1/listen", additional_headers={"Authorization": "Token right"})
        for _ in range(500):
            if not server.metrics.sockets._value.get():
                break
            threading.Event().wait(0.01)
        with socket(address, "/v1/listen", subprotocols=["token", "right"]) as line:
            assert line.subprotocol == "token", "a stream that ended frees its place"


def test_a_stream_that_says_nothing_is_closed(listener):
    with (
        listening(listener, ServerLimits(idle_seconds=0.2)) as (_, address),
        socket(address, "/v1/listen") as line,
        pytest.raises(ConnectionClosed) as closed,
    ):
        line.recv(timeout=30)
    assert closed.value.rcvd.code == 1008 and "nothing came" in closed.value.rcvd.reason
