"""Live speech behind replicas: a stream stays with one, and its client is told where that ends."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from listening import listening
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from mmaccel import speech
from mmaccel.cli import main as cli
from mmaccel.cluster.replicas import replicated
from mmaccel.modality import get_modality
from mmaccel.serve.app import ServerLimits

RATE = 16_000
RAW = "/v1/listen?encoding=linear16"


@pytest.fixture(scope="module")
def chunks():
    """Six seconds of human speech in 16-bit samples, half a second each."""
    pytest.importorskip("moonshine_voice", reason='needs the speech extra: pip install "mmaccel[speech]"')
    from mmaccel.speech.audio.recordings import load_recordings

    samples = load_recordings(["two_cities.wav"])[0].samples[: 6 * RATE]
    held = (samples.clamp(-1, 1) * 32767).short().numpy().tobytes()
    return [held[at : at + RATE] for at in range(0, len(held), RATE)]


@pytest.fixture(scope="module")
def served(chunks):
    """Two replicas of a recogniser behind a server."""
    pytest.importorskip("ray", reason='needs ray: pip install "mmaccel[ray]"')
    arguments = cli.build_parser().parse_args(["serve", "speech"])
    del arguments.run
    limits = ServerLimits(sockets=4, deadline=60)
    with (
        replicated(get_modality("speech").command(), arguments, limits, "local", 2, 2) as endpoint,
        listening(endpoint, limits) as (server, address),
    ):
        yield server, address.replace("http", "ws")


def words(line, chunks):
    """What Deepgram's messages say of some samples."""
    for chunk in [*chunks, '{"type": "CloseStream"}']:
        line.send(chunk)
    told = [json.loads(message) for message in line]
    assert told[-1]["type"] == "Metadata"
    return [one["channel"]["alternatives"][0]["transcript"] for one in told[:-1] if one["is_final"]]


def test_streams_at_once_say_what_one_model_does(served, chunks):
    server, address = served
    with speech.StreamingRecognizer(*speech.load("moonshine-tiny")).stream(RATE, channels=1) as stream:
        events = [event for chunk in chunks for event in stream.push(chunk)] + stream.finish()
    expected = [event.text for event in events if isinstance(event, speech.Final)]

    def talk(_):
        with connect(f"{address}{RAW}&sample_rate={RATE}", open_timeout=60) as line:
            return words(line, chunks)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(talk, range(4))) == [expected] * 4 and expected
    assert server.metrics.sockets._value.get() == 0


def test_what_a_replica_refuses_is_refused_before_it_is_opened(served):
    _, address = served
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{address}/v1/listen?encoding=opus", open_timeout=60)
    assert refused.value.response.status_code == 400 and b"encoding='opus'" in refused.value.response.body
    with connect(f"{address}{RAW}", open_timeout=60) as line:
        line.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(timeout=60)
    assert closed.value.rcvd.code == 1008 and "KeepAlive" in closed.value.rcvd.reason


def test_a_client_that_leaves_frees_its_place(served, chunks):
    server, address = served
    for _ in range(6):
        line = connect(f"{address}{RAW}", open_timeout=60)
        line.send(chunks[0])
        line.socket.close()  # without a word
    until = time.monotonic() + 30
    while server.metrics.sockets._value.get() and time.monotonic() < until:
        time.sleep(0.05)
    assert server.metrics.sockets._value.get() == 0
    with connect(f"{address}{RAW}", open_timeout=60) as line:
        assert words(line, chunks)


def test_a_replica_that_is_killed_closes_its_streams_and_no_other(served, chunks):
    import psutil

    _, address = served
    lines = [connect(f"{address}{RAW}&interim_results=true", open_timeout=60) for _ in range(4)]
    for line in lines:
        line.send(chunks[0])
    mine = psutil.Process().children(recursive=True)
    (one, *others) = [process.pid for process in mine if "Replica" in " ".join(process.cmdline())]
    assert others
    threading.Timer(0.5, os.kill, (one, signal.SIGKILL)).start()
    ended = []
    for line in lines:
        try:
            assert words(line, chunks)
        except ConnectionClosed as closed:
            ended.append((closed.rcvd.code, closed.rcvd.reason))
    assert 1 <= len(ended) <= 3 and set(ended) == {(1011, "the process that listened ended: open a new stream")}
    with connect(f"{address}{RAW}", open_timeout=60) as line:
        assert words(line, chunks)
