"""What stands in a server for the streams of its replicas, with a replica in this process and without Ray."""

import asyncio
import json
import threading
from types import SimpleNamespace

import httpx
import pytest
from listening import listening
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from mmaccel.cluster.forwarding import RemoteEndpoint
from mmaccel.cluster.streams import FarConnection, Inboxes
from mmaccel.errors import PromptError
from mmaccel.serve.app import ServerLimits
from mmaccel.serve.endpoint import Endpoint


class Lost(Exception):
    """A replica ended."""


class Talk(Endpoint):
    """Says each message again, in capitals."""

    path = "/v1/echo"
    left = threading.Event()

    def parse(self, body):
        raise NotImplementedError

    def answer(self, requests):
        raise NotImplementedError

    def sockets(self):
        return {"/v1/talk": self.talk}

    def pages(self):
        return {"/": "<p>talk</p>"}

    async def talk(self, line):
        if "bad" in line.query:
            raise PromptError("it is bad")
        await line.open()
        try:
            while (message := await line.take()) != "bye":
                if message == "wrong":
                    raise PromptError("it is wrong")
                await line.give({"said": int(1 / (message != "odd")) and message.upper()})
        finally:
            self.left.set()


class Actor:
    """Inboxes as Ray has them."""

    def __init__(self):
        self.kept = Inboxes()

    def __getattr__(self, name):
        method = getattr(self.kept, name)
        return SimpleNamespace(remote=lambda *given: asyncio.ensure_future(method(*given)))


class Handle:
    """A replica as Ray Serve has it; it ends as each of the first calls is told."""

    def __init__(self, *ends):
        self.ends, self.actor, self.cancelled = list(ends), Actor(), 0
        self.listen = SimpleNamespace(remote=self._remote)

    def _remote(self, path, query, stream, inboxes):
        said = FarConnection(query, stream, inboxes).talked(Talk("talk", None, None).sockets()[path])
        return Said(self, said, self.ends.pop(0) if self.ends else None)


class Said:
    def __init__(self, handle, said, end):
        self.handle, self.said, self.end = handle, said, end

    def cancel(self):
        self.handle.cancelled += 1

    async def __aiter__(self):
        if self.end == "before":
            raise Lost
        async for kind, value in self.said:
            yield kind, value
            if kind == self.end:
                raise Lost


def remote(handle):
    return RemoteEndpoint("talk", Talk, handle, (Lost,), 2, lambda: handle.actor)


def opened(address, query=""):
    return connect(f"{address.replace('http', 'ws')}/v1/talk{query}")


def closed(line):
    with pytest.raises(ConnectionClosed) as found:
        line.recv(timeout=20)
    return found.value.rcvd.code, found.value.rcvd.reason


def test_a_stream_is_carried_both_ways_and_forgotten():
    handle = Handle("before")
    with listening(remote(handle)) as (_, address):
        assert httpx.get(address).text == "<p>talk</p>"
        with opened(address) as line:
            for number in range(40):
                line.send(f"word {number}")
            line.send("bye")
            said = [json.loads(message)["said"] for message in line]
        assert said == [f"WORD {number}" for number in range(40)]
    assert handle.actor.kept.kept == {} and handle.cancelled == 2


def test_what_a_replica_refuses_is_refused_here():
    with listening(remote(Handle())) as (_, address):
        with pytest.raises(InvalidStatus) as refused:
            opened(address, "?bad=1")
        assert refused.value.response.status_code == 400 and b"it is bad" in refused.value.response.body
        for message, code, reason in (("wrong", 1008, "it is wrong"), ("odd", 1011, "the server failed")):
            line = opened(address)
            line.send(message)
            found = closed(line)
            assert found[0] == code and found[1].startswith(reason)


def test_a_stream_that_is_open_ends_with_its_replica():
    for ends in (("open",), ("before", "open"), ("give",)):
        handle = Handle(*ends)
        with listening(remote(handle)) as (_, address):
            line = opened(address)
            if ends == ("give",):
                line.send("word")
                assert json.loads(line.recv())["said"] == "WORD"
            assert closed(line) == (1011, "the process that listened ended: open a new stream")
        assert handle.actor.kept.kept == {} and not handle.ends


def test_a_stream_that_no_replica_takes_is_refused():
    with listening(remote(Handle(*["before"] * 3))) as (_, address), pytest.raises(InvalidStatus) as refused:
        opened(address)
    assert refused.value.response.status_code == 503 and b"try again later" in refused.value.response.body


def test_a_client_that_leaves_or_says_nothing_ends_the_talk():
    handle = Handle()
    with listening(remote(handle), ServerLimits(idle_seconds=0.5)) as (server, address):
        for leaves in (True, False):
            Talk.left.clear()
            line = opened(address)
            if leaves:
                line.socket.close()  # without a word
            else:
                assert closed(line) == (1008, "nothing came for 0.5 s")
            assert Talk.left.wait(20)
        for _ in range(200):
            if not server.metrics.sockets._value.get():
                break
            threading.Event().wait(0.02)
        assert server.metrics.sockets._value.get() == 0 and handle.actor.kept.kept == {}
