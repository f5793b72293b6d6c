"""Speech while it is spoken, over websockets: OpenAI's realtime client, Deepgram's messages, and a page."""

import asyncio
import base64
import functools
import json
import logging
import math
import queue
import re
import threading
from collections import deque
from types import SimpleNamespace

import httpx
import pytest
import torch
from listening import client, listening
from reader import DOCS
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from mmaccel import speech
from mmaccel.serve.app import ServerLimits
from mmaccel.serve.sockets import Connection
from mmaccel.speech.serving import deepgram, flux, realtime, transcriptions
from mmaccel.speech.serving.listening import Listening, Started

DONE = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"
RAW = "/v1/listen?encoding=linear16"


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
    return _finals(listener, tuple(chunks), rate)


@functools.cache
def _finals(listener, chunks, rate):
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
    kinds = [event.type.rpartition(".")[2] for event in events]
    assert kinds[:2] == ["speech_started", "delta"], "words come before the end"
    assert kinds.count("speech_started") == len(expected)
    starts = [event.audio_start_ms / 1000 for event in events if event.type.endswith("speech_started")]
    assert all(0 <= start - final.start <= 0.31 for start, final in zip(starts, expected, strict=True)), "its padding"


def test_the_page_s_own_program_reads_along_and_ends(address, listener, samples):
    page = (DOCS / "quickstart" / "serve.md").read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"^```py\n(.*?)^```", page, re.M | re.S) if "def read_along" in code]
    told, chunks = [], raw(samples, 24_000)
    names = {"print": told.append}
    exec(code.replace("http://127.0.0.1:8002", address), names)

    async def spoken():
        for chunk in chunks:
            yield chunk

    asyncio.run(asyncio.wait_for(names["read_along"](spoken()), 60))
    expected = [final.text for final in finals(listener, chunks, 24_000)]
    assert [event.transcript for event in told if event.type == DONE and event.transcript] == expected and expected


def test_a_whole_recording_may_come_in_one_message(address, listener, samples):
    chunk = bytes(2 * 24_000 * 60) + b"".join(raw(samples, 24_000))
    with client(address).realtime.connect(model="moonshine-tiny") as line:
        line.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())
        line.input_audio_buffer.commit()
        line.session.update(session={"type": "transcription"})
        events = [line.recv()]
        while events[-1].type != "session.updated":
            events.append(line.recv())
    told = [event.transcript for event in events if event.type == DONE and event.transcript]
    assert told == [final.text for final in finals(listener, [chunk], 24_000)] and told


def test_without_turns_all_comes_at_the_commit(listener, samples):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
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


def test_a_commit_of_a_noise_without_words_is_answered_too(listener):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
    conversation._listening.end = lambda: [speech.Endpoint(1.0)]
    told = conversation.take('{"type": "input_audio_buffer.commit"}')
    answered = ["input_audio_buffer.speech_stopped", "input_audio_buffer.committed", DONE]
    assert [event["type"] for event in told] == answered
    assert told[-1]["transcript"] == ""


def test_each_item_of_speech_that_is_cut_has_a_beginning_and_an_end(listener):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
    first, second, third = (speech.Final(text, (), 0.0, end) for text, end in (("a", 2.0), ("b", 3.3), ("c", 5.0)))
    conversation._listening.push = lambda _: [Started(0.1), first, speech.Endpoint(3.0), second, Started(4.0)]
    told = conversation.take('{"type": "input_audio_buffer.append", "audio": ""}')
    sides = [event for event in told if ".speech_" in event["type"]]
    assert [event.get("audio_start_ms", event.get("audio_end_ms")) for event in sides] == [100, 2000, 2000, 3000, 4000]
    items = [event["item_id"] for event in told if event["type"] == DONE]
    assert [event["item_id"] for event in sides[:4]] == [items[0], items[0], items[1], items[1]]
    assert [event["type"].rpartition("_")[2] for event in sides] == ["started", "stopped"] * 2 + ["started"]
    conversation._listening.end = lambda: [third]
    told = conversation.take('{"type": "input_audio_buffer.commit"}')
    assert told[-1]["item_id"] == sides[-1]["item_id"] and not any(".speech_" in event["type"] for event in told)


def test_speech_begins_behind_the_final_that_ends_there():
    events = [speech.Endpoint(0.6), speech.Final("a", (), 0.0, 1.0)]
    stream = SimpleNamespace(push=lambda _: events, starts=deque([0.1, 1.0]), time=2.0)
    heard = Listening(SimpleNamespace(stream=lambda *_: stream), 16_000)
    assert heard.push(b"") == [Started(0.1), *events, Started(1.0)] and heard.speaks


def test_what_is_told_in_parts_is_joined_as_its_script_is(listener):
    finals = [speech.Final(text, (), 0.0, 1.0) for text in ("\u4f60", "\u597d")]
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
    conversation._texts = [final.text for final in finals]
    assert conversation._completed()[-1]["transcript"] == "\u4f60\u597d"
    turns = flux.Turns(is_eager=True)
    told = turns.take([*finals, speech.Resumed(1.0), speech.Partial("", "\u4f60", "")], 1.0, False)
    assert [message["transcript"] for message in told] == ["\u4f60\u597d", "\u4f60\u597d\u4f60"]
    request = SimpleNamespace(pieces=queue.SimpleQueue(), last="")
    list(transcriptions._handed_on(finals, request))
    assert [request.pieces.get(), request.pieces.get()] == ["\u4f60", "\u597d"]


def test_the_beta_s_messages_are_taken_too(listener):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
    session = {"input_audio_format": "pcm16", "turn_detection": {"type": "server_vad", "silence_duration_ms": 300}}
    (told,) = conversation.take(json.dumps({"type": "transcription_session.update", "session": session}))
    assert told["type"] == "transcription_session.updated"
    assert conversation._listening._recognizer.endpoint.silence == 0.3
    assert conversation.take('{"type": "input_audio_buffer.clear"}')[0]["type"] == "input_audio_buffer.cleared"


def test_what_an_update_does_not_mention_stays_and_nothing_said_is_lost(listener, samples):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")

    def update(**heard):
        return conversation.take(json.dumps({"type": "session.update", "session": {"audio": {"input": heard}}}))

    def said(chunk):
        append = {"type": "input_audio_buffer.append", "audio": base64.b64encode(chunk).decode()}
        return conversation.take(json.dumps(append))

    (told,) = update(format={"type": "audio/pcm", "rate": 16_000}, turn_detection=None)
    kept = told["session"]["audio"]["input"]
    chunks = raw(samples, 16_000)
    assert not [event for chunk in chunks for event in said(chunk)]
    (told,) = update(transcription={"model": "moonshine-tiny", "prompt": ""})
    assert told["session"]["audio"]["input"] == {**kept, "transcription": {"model": "moonshine-tiny", "prompt": ""}}
    listening = conversation._listening
    (told,) = update(transcription={"prompt": ""})
    assert conversation._listening is listening, "nothing else was asked for"
    told = conversation.take('{"type": "input_audio_buffer.commit"}')
    assert told[-1]["transcript"] == " ".join(final.text for final in finals(listener, chunks, 16_000))


def test_an_update_in_the_middle_of_speech_ends_what_was_said(listener, samples):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
    for chunk in raw(samples, 24_000)[:3]:
        append = {"type": "input_audio_buffer.append", "audio": base64.b64encode(chunk).decode()}
        conversation.take(json.dumps(append))
    turns = {"type": "server_vad", "silence_duration_ms": 700, "threshold": 0.4}
    update = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": turns}}}}
    time = conversation._listening.time
    *ended, told = conversation.take(json.dumps(update))
    assert DONE in [event["type"] for event in ended] and told["session"]["audio"]["input"]["turn_detection"] == turns
    assert conversation._listening.time == pytest.approx(time, abs=0.1), "times go on"


def test_what_waits_for_a_commit_is_told_once_pauses_end_turns(listener, samples):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
    for turns in (None, {"type": "server_vad"}):
        update = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": turns}}}}
        *ended, _ = conversation.take(json.dumps(update))
        if turns is None:
            for chunk in raw(samples, 24_000)[:4]:
                append = {"type": "input_audio_buffer.append", "audio": base64.b64encode(chunk).decode()}
                assert conversation.take(json.dumps(append)) == []
    assert ended[-1]["type"] == DONE and ended[-1]["transcript"]
    assert not conversation._texts


BAD = (
    ('{"type": "session.update", "session": {"nonsense": 1}}', "'nonsense' is not used here"),
    ('{"type": "session.update", "session": {"audio": {"output": {}}}}', "'output' is not used here"),
    ('{"type": "session.update", "session": {"turn_detection": {"type": "semantic_vad"}}}', "takes 'server_vad' only"),
    ('{"type": "session.update", "session": {"turn_detection": false}}', "turn_detection is no JSON object"),
    ('{"type": "session.update", "session": {"input_audio_transcription": {"prompt": 5}}}', "prompt=5: give a text"),
    ('{"type": "session.update", "session": {"input_audio_transcription": {"language": ["en"]}}}', "give a text"),
    ('{"type": "session.update", "session": {"input_audio_transcription": {"prompt": "\\ud800"}}}', "in UTF-8"),
    ("{", "is no JSON"),
    ("[1]", "no JSON object"),
    ('{"type": "session.update"}', "session.update holds its settings in `session`"),
    ('{"type": "transcription_session.update", "turn_detection": null}', "holds its settings in `session`"),
    ('{"type": "transcription_session.update", "input_audio_format": "g711_ulaw"}', "holds its settings in `session`"),
    ('{"type": "session.update", "session": {}, "language": "de"}', "nothing beside it"),
    ('{"type": "input_audio_buffer.append", "audio": "AAAAAAAA", "rate": 8000}', "'rate' is not used here"),
    ('{"type": "input_audio_buffer.commit", "final": true}', "'final' is not used here"),
    ('{"type": ["session.update"]}', "a message of type ['session.update']"),
    ('{"type": "response.create"}', "a message of type 'response.create'"),
    ('{"type": "input_audio_buffer.append", "audio": "##"}', "no base64"),
    ('{"type": "input_audio_buffer.append"}', "no base64"),
    ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "whole number of 16-bit samples"),
    ('{"type": "session.update", "session": 1}', "session is no JSON object"),
    ('{"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}}', "audio/pcm"),
    ('{"type": "session.update", "session": {"audio": {"input": {"format": {"rate": "x"}}}}}', "rate='x'"),
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


def test_an_error_names_the_message_that_it_is_about(address):
    with client(address).realtime.connect(model="moonshine-tiny") as line:
        line.recv()
        for number in ("mine", 7, None):
            line.send({"type": "input_audio_buffer.append", "event_id": number, "audio": "##"})
        line.send({"type": "response.create", "event_id": "next"})
        errors = [line.recv().error for _ in range(4)]
    assert [error.event_id for error in errors] == ["mine", None, None, "next"]


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
    assert all(result["channel"]["alternatives"][0]["confidence"] == 1.0 for result in told[:-1])
    word = ends[0]["channel"]["alternatives"][0]["words"][0]
    assert word["confidence"] == 1.0
    assert (word["start"], word["end"]) == (expected[0].words[0].start, expected[0].words[0].end)
    assert any(not result["is_final"] for result in told[:-1]), "words come before the end"
    about = {"name": "moonshine-tiny", "version": "", "arch": ""}  # its own client takes no result without it
    assert all(result["metadata"]["model_info"] == about for result in told[:-1])
    assert len({result["metadata"]["request_id"] for result in told[:-1]}) == 1
    assert told[-1]["type"] == "Metadata" and told[-1]["duration"] == pytest.approx(len(samples) / 16_000)


@pytest.mark.parametrize("whole", (False, True), ids=("as it comes", "at once"))
def test_deepgram_s_beginnings_and_ends_come_where_they_are_asked_for(address, listener, samples, whole):
    """Also of several utterances in one message; an end is told once, when nobody has spoken for so long."""
    chunks = raw(torch.cat([samples, torch.zeros(3 * 16_000)] * 2), 16_000)
    expected, told = finals(listener, chunks, 16_000), []
    with socket(address, f"{RAW}&vad_events=true&utterance_end_ms=1500") as line:
        for chunk in [b"".join(chunks)] if whole else chunks:
            line.send(chunk)
        line.send('{"type": "CloseStream"}')
        told = [json.loads(message) for message in line]
    assert all("metadata" in one for one in told if one["type"] == "Results")
    starts = [one["timestamp"] for one in told if one["type"] == "SpeechStarted"]
    assert all(0 <= start - final.start <= 0.31 for start, final in zip(starts, expected, strict=True)), "its padding"
    kinds = [one["type"] for one in told]
    assert kinds[:2] == ["SpeechStarted", "Results"] and kinds[-2:] == ["UtteranceEnd", "Metadata"]
    ends = [one["last_word_end"] for one in told if one["type"] == "UtteranceEnd"]
    spoken = [final.words[-1].end for final in expected]
    assert ends == [end for end, start in zip(spoken, [*starts[1:], math.inf], strict=True) if start - end >= 1.5]
    assert 1 < len(ends) < len(expected)
    places = [place for place, kind in enumerate(kinds[:-2]) if kind == "UtteranceEnd"]
    assert not whole or all(kinds[place + 1] == "SpeechStarted" for place in places), "each before what follows"


@pytest.mark.parametrize("version", (1, 2))
@pytest.mark.parametrize("end", ('{"type": "CloseStream"}', b""))
def test_messages_may_be_cut_within_a_sample(address, listener, samples, version, end):
    """As what a pipe or an HTTP response gives."""
    whole = b"".join(raw(samples[: 6 * 16_000], 16_000))
    with socket(address, f"/v{version}/listen?encoding=linear16") as line:
        for at in range(0, len(whole), 4_095):
            line.send(whole[at : at + 4_095])
        line.send(end)
        told = [json.loads(message) for message in line]
    expected = [final.text for final in finals(listener, [whole], 16_000)]
    ends = [one["channel"]["alternatives"][0]["transcript"] for one in told if one.get("is_final")]
    ends += [one["transcript"] for one in told if one.get("event") == "EndOfTurn"]
    assert ends == expected and any(expected)


def test_samples_of_several_channels_are_put_together_behind_a_flush_too():
    pushed, stereo = [], bytes(range(256)) * 5
    stream = SimpleNamespace(push=lambda data: pushed.append(data) or [], finish=list, close=list, time=0.0, starts=[])
    heard = Listening(SimpleNamespace(stream=lambda *_: stream), 16_000, channels=2)
    for at in range(0, len(stereo), 7):
        heard.feed(stereo[at : at + 7])
        if at == 21:
            heard.end()
    assert b"".join(pushed) == stereo and not any(len(data) % 4 for data in pushed)


def test_a_byte_of_zero_ends_a_stream(address, samples):
    """As Deepgram's own client for .NET can end it; within a sample it is half of that."""
    first, *others = raw(samples, 16_000)[:3]
    with socket(address, RAW) as line:
        for data in (first + b"\1", b"\0", *others, b"\0"):
            line.send(data)
        *ends, last = (json.loads(message) for message in line)
    assert last["type"] == "Metadata" and ends[-1]["channel"]["alternatives"][0]["transcript"]
    assert last["duration"] == pytest.approx((len(first) + 2 + sum(map(len, others))) / 32_000)


def test_clients_at_once_hear_what_each_would_alone_and_one_that_leaves_holds_nobody(address, listener, samples):
    parts = [raw(samples[at : at + 40_000], 16_000) for at in (0, 48_000)]
    expected = [[final.text for final in finals(listener, chunks, 16_000)] for chunks in parts]
    listener.opened.gathering.sizes.clear()
    found = [[], []]
    leaver = socket(address, RAW)

    def talk(number):
        with socket(address, RAW) as line:
            for chunk in [*parts[number], '{"type": "CloseStream"}']:
                line.send(chunk)
            found[number] = [json.loads(message) for message in line][:-1]

    threads = [threading.Thread(target=talk, args=(number,)) for number in (0, 1)]
    leaver.send(parts[0][0])
    for thread in threads:
        thread.start()
    leaver.send(parts[0][1])
    leaver.close()
    for thread in threads:
        thread.join(60)
    texts = [[told["channel"]["alternatives"][0]["transcript"] for told in one if told["is_final"]] for one in found]
    assert texts == expected and any(texts) and listener.opened.gathering.sizes


def test_a_socket_that_the_server_closed_is_one_that_was_left():
    class Closed:
        async def send_text(self, text):
            raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")

    with pytest.raises(WebSocketDisconnect):
        asyncio.run(Connection(Closed(), 1.0).give({}))


def test_what_is_flushed_on_the_way_keeps_its_times(address, listener, samples):
    chunks = raw(samples[: 4 * 16_000], 16_000)
    with socket(address, RAW) as line:
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
    ("/v1/listen", {}, 400, "encoding is missing: this server takes raw 16-bit samples, say encoding=linear16"),
    ("/v1/listen?encoding=opus", {}, 400, "encoding='opus'"),
    ("/v2/listen?sample_rate=16000", {}, 400, "encoding is missing"),
    (f"{RAW}&sample_rate=x", {}, 400, "rate='x'"),
    (f"{RAW}&sample_rate=1", {}, 400, "sample_rate=1"),
    (f"{RAW}&diarize=true", {}, 400, "diarize='true': this server takes 'false' only"),
    (f"{RAW}&diarize=True", {}, 400, "diarize='true': this server takes 'false' only"),
    (f"{RAW}&interim_results=1", {}, 400, "interim_results='1': it must be true or false"),
    (f"{RAW}&numerals=yes", {}, 400, "numerals='yes': it must be true or false"),
    (f"{RAW}&endpointing=soon", {}, 400, "endpointing='soon': give a whole number"),
    (f"{RAW}&language=de-DE", {}, 400, "language='de-DE'"),
    (f"{RAW}&model=nova-3", {}, 400, "model='nova-3': this server takes 'moonshine-tiny' only"),
    ("/v1/realtime?model=gpt-realtime", {}, 400, "model='gpt-realtime'"),
    ("/v1/realtime", {"additional_headers": {"Origin": "http://evil.example"}}, 403, ""),
)


@pytest.mark.parametrize(("path", "more", "status", "said"), REFUSED)
def test_what_is_not_taken_is_refused_before_it_is_opened(address, path, more, status, said):
    with pytest.raises(InvalidStatus) as refused:
        socket(address, path, **more)
    response = refused.value.response
    assert response.status_code == status and said in response.body.decode()


def test_the_log_calls_no_refusal_a_fault(address, caplog, monkeypatch):
    log = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    with caplog.at_level(logging.INFO, log.name):
        with pytest.raises(InvalidStatus, match="400"):
            socket(address, "/v1/listen")
        with pytest.raises(InvalidStatus, match="403"):
            socket(address, RAW, additional_headers={"Origin": "http://evil.example"})
        httpx.get(f"{address}/health")  # behind the ends of both
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [line for level, line in lines if level in ("WARNING", "ERROR")] == [
        "refused: this request comes from a page of another site: open the server itself"
    ]
    assert any("WebSocket /v1/listen" in line for _, line in lines), "uvicorn's lines were looked at"


# As the plugin for LiveKit Agents has it.
LIVEKIT = (
    "punctuate=true&smart_format=false&no_delay=true&interim_results=true&vad_events=true&sample_rate=16000&channels=1"
    "&endpointing=25&filler_words=true&profanity_filter=false&numerals=false&mip_opt_out=false&language=en-US"
)


@pytest.mark.parametrize(
    "asked",
    (
        "language=en-US&endpointing=10",
        "endpointing=false",
        "endpointing=true",
        "endpointing=False&diarize=False&interim_results=True",
        "utterance_end_ms=1000",
        "language=multi",
        LIVEKIT,
    ),
)
def test_what_deepgram_s_clients_ask_for_by_default_is_taken(address, asked):
    with socket(address, f"{RAW}&{asked}") as line:
        line.send('{"type": "CloseStream"}')
        assert json.loads(line.recv())["type"] == "Metadata"


@pytest.mark.parametrize("asked", ("true", "True", "TRUE"))
def test_python_s_true_asks_for_partials_too(listener, asked):
    _, has_partials, *_ = deepgram._begun({"encoding": "linear16", "interim_results": asked}, listener.opened, "none")
    assert has_partials


@pytest.mark.parametrize(("asked", "seconds"), ((50, 0.1), (800, 0.8)))
def test_a_pause_is_as_long_as_is_asked_for_and_as_can_be_told(listener, asked, seconds):
    conversation = realtime.RealtimeConversation(listener.opened, "moonshine-tiny")
    turns = {"type": "server_vad", "silence_duration_ms": asked}
    update = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": turns}}}}
    (told,) = conversation.take(json.dumps(update))
    assert told["type"] == "session.updated"
    assert conversation._listening._recognizer.endpoint.silence == seconds


def test_settings_behind_a_commit_are_answered_once_the_last_words_are(address, samples):
    """By this the page that listens knows that it has all."""
    with socket(address, "/v1/realtime") as line:
        for chunk in raw(samples, 24_000)[:4]:
            audio = base64.b64encode(chunk).decode()
            line.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        line.send('{"type": "input_audio_buffer.commit"}')
        line.send('{"type": "session.update", "session": {}}')
        kinds = []
        while kinds[-1:] != ["session.updated"]:
            kinds.append(json.loads(line.recv())["type"])
    assert kinds[-2] == DONE


def test_a_text_among_samples_closes_the_stream(address):
    with socket(address, RAW) as line:
        line.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            line.recv()
    assert closed.value.rcvd.code == 1008 and "KeepAlive" in closed.value.rcvd.reason


def test_keys_and_the_most_streams(listener):
    with listening(listener, ServerLimits(sockets=1), key="right") as (server, address):
        with pytest.raises(InvalidStatus, match="401"):
            socket(address, "/v1/realtime")
        with pytest.raises(InvalidStatus, match="401"):
            socket(address, RAW, subprotocols=["token", "wrong"])
        with socket(address, "/v1/realtime", subprotocols=["realtime", "openai-insecure-api-key.right"]) as line:
            assert line.subprotocol == "realtime" and json.loads(line.recv())["type"] == "session.created"
            with pytest.raises(InvalidStatus, match="503"):
                socket(address, RAW, additional_headers={"Authorization": "Token right"})
        for _ in range(500):
            if not server.metrics.sockets._value.get():
                break
            threading.Event().wait(0.01)
        with socket(address, RAW, subprotocols=["token", "right"]) as line:
            assert line.subprotocol == "token", "a stream that ended frees its place"


def test_a_stream_that_says_nothing_is_closed(listener):
    with (
        listening(listener, ServerLimits(idle_seconds=0.2)) as (_, address),
        socket(address, RAW) as line,
        pytest.raises(ConnectionClosed) as closed,
    ):
        line.recv(timeout=30)
    assert closed.value.rcvd.code == 1008 and "nothing came" in closed.value.rcvd.reason


def turns(address, chunks, query=""):
    """What `/v2/listen` answers, each message behind its sequence number."""
    with socket(address, f"/v2/listen?encoding=linear16&model=moonshine-tiny&sample_rate=16000{query}") as line:
        for chunk in chunks:
            line.send(chunk)
        line.send('{"type": "CloseStream"}')
        told = [json.loads(message) for message in line]
    assert [message["sequence_id"] for message in told] == list(range(len(told)))
    assert told[0]["type"] == "Connected" and all(message["type"] == "TurnInfo" for message in told[1:])
    return told[1:]


def test_flux_s_messages_tell_ends_early(address, listener, samples):
    """The order that Flux promises: an end has the text of the early end before it, or the turn was resumed."""
    chunks = raw(samples, 16_000)
    chunks = [chunk[at : at + 2560] for chunk in chunks for at in range(0, len(chunk), 2560)]
    told, expected = (
        turns(address, chunks, "&eager_eot_threshold=0.5&eot_timeout_ms=5000"),
        finals(listener, chunks, 16_000),
    )
    ends = [message for message in told if message["event"] == "EndOfTurn"]
    assert [end["transcript"] for end in ends] == [final.text for final in expected]
    assert [end["turn_index"] for end in ends] == list(range(len(ends)))
    assert ends[0]["words"][0]["start"] == expected[0].words[0].start and ends[0]["words"][0]["confidence"] == 1.0
    eager, begun, early = None, False, 0
    for message in told:
        event, text = message["event"], message["transcript"]
        assert begun == (event != "StartOfTurn") and message["audio_window_start"] <= message["audio_window_end"]
        if event == "EagerEndOfTurn":
            assert text
            eager, early = text, early + 1
        elif event == "TurnResumed":
            assert eager is not None
            eager = None
        elif event == "EndOfTurn":
            assert eager in (None, text)
            eager = None
        begun = event != "EndOfTurn"
    assert early >= 3
    quiet = turns(address, chunks)
    assert {message["event"] for message in quiet} == {"StartOfTurn", "Update", "EndOfTurn"}
    assert [message["transcript"] for message in quiet if message["event"] == "EndOfTurn"] == [
        e["transcript"] for e in ends
    ]


def test_a_turn_goes_on_behind_a_cut():
    """A final without a pause does not end a turn, and what is told early has the text before it."""
    told = flux.Turns(is_eager=True)
    first = [speech.Partial("a", " b", "a"), speech.Final("a b", (), 0.0, 1.0), speech.Eager("c.", 2.0)]
    spoken = told.take([*first, speech.Resumed(2.2)], 2.2, is_over=False)
    assert [(one["event"], one["transcript"]) for one in spoken] == [
        ("StartOfTurn", "a b"),
        ("EagerEndOfTurn", "a b c."),
        ("TurnResumed", "a b"),
    ]
    last = [speech.Endpoint(3.0), speech.Final("c d.", (), 1.0, 3.0)]
    assert [one["transcript"] for one in told.take(last, 3.5, is_over=False)] == ["a b c d."]
    assert told.take([speech.Endpoint(5.0), speech.Final("", (), 4.0, 5.0)], 5.5, is_over=False) == []
    (start, end) = told.take([speech.Final("e", (), 6.0, 7.0)], 7.0, is_over=True)
    assert (start["event"], end["event"], end["turn_index"], end["audio_window_start"]) == (
        "StartOfTurn",
        "EndOfTurn",
        1,
        3.5,
    )


def test_a_noise_without_words_ends_no_later_turn():
    told = flux.Turns(is_eager=False)
    assert told.take([speech.Endpoint(1.0)], 1.5, is_over=False) == []
    cut = [speech.Partial("a", "", "a"), speech.Final("a b", (), 2.0, 17.0)]
    assert [one["event"] for one in told.take(cut, 17.0, is_over=False)] == ["StartOfTurn"]
    paused = [speech.Endpoint(18.0), speech.Final("c", (), 17.0, 18.0)]
    assert [(one["event"], one["transcript"]) for one in told.take(paused, 18.5, is_over=False)] == [
        ("EndOfTurn", "a b c")
    ]


@pytest.mark.parametrize("more", ((), (speech.Partial("", "c", ""),)), ids=("alone", "with the next"))
def test_a_pause_behind_a_cut_ends_the_turn_without_words_too(more):
    told = flux.Turns(is_eager=False)
    told.take([speech.Partial("a", "", "a"), speech.Final("a b", (), 2.0, 17.0)], 17.0, is_over=False)
    spoken = told.take([speech.Endpoint(17.5), *more], 18.0, is_over=False)
    assert [(one["event"], one["transcript"]) for one in spoken[:1]] == [("EndOfTurn", "a b")]
    assert [one["turn_index"] for one in spoken] == [0, *(1 for _ in more)]
    cut = [speech.Final("a b", (), 2.0, 17.0), speech.Endpoint(17.5), *more]
    first, end, *_ = deepgram._results(cut, False, 2.0, False, False)
    assert (first["speech_final"], end["speech_final"], end["start"], end["duration"]) == (False, True, 17.0, 0.5)
    assert end["is_final"] and end["channel"]["alternatives"][0]["transcript"] == ""
    assert deepgram._results(cut[1:2], False, 17.0, False, False) == [], "a noise by itself ends nothing"
    assert deepgram._results(cut[1:2], False, 17.0, True, False)[0]["speech_final"]
    (end,) = deepgram._results([], False, 17.0, True, flushed=True)
    assert end["is_final"] and end["speech_final"] and end["from_finalize"]
    assert deepgram._results([], False, 17.0, False, flushed=True) == []


@pytest.mark.parametrize(
    ("query", "said"), (("&keyterm=x", "'keyterm' is not used here"), ("&model=flux-general-en", "model="))
)
def test_flux_refuses_what_it_does_not_take(address, query, said):
    with pytest.raises(InvalidStatus) as refused:
        socket(address, f"/v2/listen?encoding=linear16{query}")
    assert refused.value.response.status_code == 400 and said in refused.value.response.body.decode()
    with socket(address, "/v2/listen?encoding=linear16") as line:
        line.recv()
        line.send('{"type": "KeepAlive"}')
        with pytest.raises(ConnectionClosed) as closed:
            line.recv()
    assert closed.value.rcvd.code == 1008 and "CloseStream" in closed.value.rcvd.reason
