"""What stands in a server for replicas: it sends requests on, and once more where a replica ends."""

import argparse
import asyncio
import queue
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from listening import listening

from mmaccel.batch.items import Item
from mmaccel.batch.work import Task
from mmaccel.cluster import connection, forwarding
from mmaccel.cluster.forwarding import Forwarder, RemoteEndpoint
from mmaccel.cluster.replicas import Replica
from mmaccel.cluster.spread import BatchWorker
from mmaccel.errors import PromptError, SettingError
from mmaccel.serve.app import ServerLimits
from mmaccel.serve.endpoint import Endpoint, Fields, Left, Refused, Request
from mmaccel.serve.keys import Key
from mmaccel.serve.metrics import Metrics
from mmaccel.serve.promises import Promises


class Lost(Exception):
    """A replica ended."""


class Echo(Endpoint):
    path = "/v1/echo"

    def parse(self, body):
        fields = Fields(body)
        text, streams = fields.text("text", 100), fields.take("stream", False)
        fields.end()
        if text == "busy":
            raise Refused(503, "too busy")
        made = Request(pieces=queue.SimpleQueue() if streams else None)
        made.text = text
        return made

    def answer(self, requests):
        (request,) = requests
        for letter in request.text if request.pieces is not None else "":
            request.pieces.put(letter)
        if request.text == "bad":
            raise PromptError("it is bad")
        return [{"text": request.text}]

    def piece(self, request, text):
        return {"done": request.text} if text is None else {"letter": text}


class Command:
    @contextmanager
    def served(self, arguments):
        if arguments.model == "none":
            raise SettingError("there is no such model")
        yield Echo("echo", None, None)


class Handle:
    """What Ray Serve has of replicas; each of the first calls ends as it is told."""

    def __init__(self, *ends, slow=False):
        self.ends, self.asked, self.slow, self.cancelled = list(ends), 0, slow, 0
        self.replica = Replica(Command(), argparse.Namespace(model="echo"), 4, 1)
        self.ask = SimpleNamespace(remote=self._remote)

    def _remote(self, body, seconds):
        self.asked += 1
        return Said(self, body, seconds, self.ends.pop(0) if self.ends else None)


class Said:
    def __init__(self, handle, body, seconds, end):
        self.handle, self.body, self.seconds, self.end = handle, body, seconds, end

    def cancel(self):
        self.handle.cancelled += 1

    async def __aiter__(self):
        if self.end == "before":
            raise Lost
        if self.end == "at work":
            yield "begun", None
            raise Lost
        if self.handle.slow:
            await asyncio.sleep(60)
        async for said in self.handle.replica.ask(self.body, self.seconds):
            yield said
            if self.end == "after a piece" and said[0] == "piece":
                raise Lost


def remote(handle, running=2):
    return RemoteEndpoint("echo", Echo, handle, (Lost,), running, None)


def post(address, **body):
    return httpx.post(f"{address}/v1/echo", json=body, timeout=30)


@pytest.mark.parametrize("ends", ((), ("before",), ("at work", "at work")))
def test_answers_come_from_the_first_replica_that_lives(ends):
    handle = Handle(*ends)
    with listening(remote(handle)) as (server, address):
        assert post(address, text="hi").json() == {"text": "hi"} and handle.asked == len(ends) + 1
        said = post(address, text="hi", stream=True).text.split("\n\n")
    assert said[:4] == ['data: {"letter": "h"}', 'data: {"letter": "i"}', 'data: {"done": "hi"}', "data: [DONE]"]
    assert server.worker.tasks == set()


def test_a_stream_ends_with_all_events_of_its_end(monkeypatch):
    monkeypatch.setattr(Echo, "ending", lambda self, request: [{"done": request.text}, {"read": 2}])
    with listening(remote(Handle())) as (_, address):
        said = post(address, text="hi", stream=True).text.split("\n\n")
    assert said[2:5] == ['data: {"done": "hi"}', 'data: {"read": 2}', "data: [DONE]"]


class Clip(Echo):
    later, media = "video", "video/mp4"
    takes_forms = True


def test_promises_are_kept_by_replicas_too():
    handle = Handle("before")  # the second replica is asked after half a second, when no client would wait any more
    with listening(RemoteEndpoint("echo", Clip, handle, (Lost,), 2, None), ServerLimits(deadline=0.2)) as (_, address):
        promise = post(address, text="hi").json()
        assert (promise["object"], promise["text"]) == ("video", "hi")
        for _ in range(300):
            told = httpx.get(f"{address}/v1/echo/{promise['id']}").json()
            if told["status"] == "completed":
                break
            time.sleep(0.02)
        assert told["status"] == "completed" and told["progress"] == 100


def test_a_promise_tells_how_far_its_replica_is(monkeypatch):
    """As the server of a model of its own does."""
    half, seen = threading.Event(), threading.Event()

    def answer(self, requests):
        requests[0].progress = 50
        half.set()
        seen.wait(30)
        return [{"text": "hi"}]

    monkeypatch.setattr(Echo, "answer", answer)
    with listening(RemoteEndpoint("echo", Clip, Handle(), (Lost,), 2, None)) as (_, address):
        promise, told = post(address, text="hi").json(), {"progress": 0}
        assert half.wait(30)
        for _ in range(300):
            told = httpx.get(f"{address}/v1/echo/{promise['id']}").json()
            if told["progress"]:
                break
            time.sleep(0.02)
        seen.set()
    assert (told["status"], told["progress"]) == ("in_progress", 50)


def test_a_promise_tells_numbers_of_json_as_texts_of_a_form():
    endpoint = RemoteEndpoint("echo", Clip, Handle(), (Lost,), 2, None)
    assert endpoint.described(endpoint.parse({"text": "hi", "seconds": 4})) == {"text": "hi", "seconds": "4"}


def test_a_promise_tells_its_own_state_whatever_was_asked_for():
    endpoint = RemoteEndpoint("echo", Clip, Handle(), (Lost,), 2, None)
    request = endpoint.parse({"text": "hi", "id": "mine", "status": "completed"})
    told = Promises(endpoint, Key("")).add(request, Future())
    assert (told["status"], told["text"]) == ("queued", "hi") and told["id"].startswith("video_")


def test_what_a_replica_refuses_is_refused():
    with listening(remote(Handle())) as (_, address):
        for text, status, reason in (
            ("busy", 503, "too busy"),
            ("bad", 400, "it is bad"),
            ("", 400, "text is missing"),
        ):
            found = post(address, text=text)
            assert found.status_code == status and found.json()["error"]["message"].startswith(reason)
        assert "it is bad" in post(address, text="bad", stream=True).text


@pytest.mark.parametrize("answering", (Echo, Clip))
def test_what_a_replica_refuses_of_a_stream_or_a_promise_has_its_status(answering):
    with listening(RemoteEndpoint("echo", answering, Handle(), (Lost,), 2, None)) as (_, address):
        for text, status in (("busy", 503), ("", 400)):
            assert post(address, text=text, stream=answering is Echo).status_code == status


def test_what_a_stream_is_refused_for_once_it_runs_has_its_status_too(monkeypatch):
    def refuses(self, requests):
        raise PromptError("it is too long")

    monkeypatch.setattr(Echo, "answer", refuses)
    with listening(remote(Handle())) as (_, address):
        answer = post(address, text="hi", stream=True)
    assert answer.status_code == 400 and answer.json()["error"]["message"] == "it is too long"


def test_requests_at_work_are_told_from_those_that_wait(monkeypatch):
    began, may = threading.Semaphore(0), threading.Semaphore(0)

    def answer(self, requests):
        began.release()
        may.acquire(timeout=30)
        return [{"text": request.text} for request in requests]

    monkeypatch.setattr(Echo, "answer", answer)
    with listening(remote(Handle(), running=4)) as (server, address), ThreadPoolExecutor() as pool:

        def told(*expected):
            gauges = server.metrics.running, server.metrics.waiting
            for _ in range(1000):
                found = tuple(gauge._value.get() for gauge in gauges)
                if found == expected:
                    return
                time.sleep(0.01)
            raise AssertionError(f"{found} in place of {expected}")

        asked = [pool.submit(post, address, text="hi") for _ in range(3)]
        assert began.acquire(timeout=30)
        told(1, 2)
        may.release()
        told(1, 1)
        may.release(2)
        assert [one.result().status_code for one in asked] == [200] * 3
        told(0, 0)


def test_a_promise_does_not_wait_long_for_a_replica(monkeypatch):
    monkeypatch.setattr(forwarding, "CHECK", 0.1)
    with listening(RemoteEndpoint("echo", Clip, Handle(slow=True), (Lost,), 2, None)) as (server, address):
        promise = post(address, text="hi").json()
        assert promise["status"] == "in_progress"
        httpx.delete(f"{address}/v1/echo/{promise['id']}")
        for _ in range(300):
            if not server.worker.tasks:
                break
            time.sleep(0.01)
        assert not server.worker.tasks


def test_a_request_that_ends_every_replica_fails():
    handle = Handle("before", *["at work"] * 3)
    with listening(remote(handle)) as (_, address):
        found = post(address, text="hi")
    assert found.status_code == 500 and "ask again" in found.json()["error"]["message"] and handle.asked == 4


def test_a_request_whose_replicas_end_until_its_deadline_is_given_up():
    with listening(remote(Handle(*["before"] * 99)), ServerLimits(deadline=1)) as (_, address):
        assert post(address, text="hi").status_code == 504


def test_a_stream_that_has_begun_is_not_begun_again():
    handle = Handle("after a piece")
    with listening(remote(handle)) as (_, address):
        said = post(address, text="hi", stream=True).text
    assert said.count('"letter"') == 1 and "ask again" in said and handle.asked == 1


def test_too_many_are_refused_and_who_leaves_frees_a_place():
    handle = Handle(slow=True)

    async def ask():
        forwarder = Forwarder(handle, (Lost,), Metrics(), 2)
        asked = [remote(handle).parse({"text": "hi"}) for _ in range(3)]
        futures = [forwarder.submit(request, time.monotonic() + 60) for request in asked[:2]]
        with pytest.raises(Refused, match="2 requests are under way already") as refused:
            forwarder.submit(asked[2], time.monotonic() + 60)
        assert refused.value.status == 503
        await asyncio.sleep(0.1)
        asked[0].left.set()
        while len(forwarder.tasks) == 2:
            await asyncio.sleep(0.01)
        assert isinstance(futures[0].exception(), Left) and not futures[1].done() and handle.cancelled == 1
        asked[1].left.set()
        await asyncio.gather(*forwarder.tasks)

    asyncio.run(asyncio.wait_for(ask(), 20))


def test_as_many_may_wait_as_behind_one_model():
    limits = ServerLimits(waiting=3, batch=2)
    with listening(remote(Handle(), running=4), limits) as (server, _):
        assert server.worker.most == 7


def test_what_cannot_be_loaded_is_kept_and_told():
    given = argparse.Namespace(model="none")
    assert "no such model" in Replica(Command(), given, 4, 1).problem() and not Handle().replica.problem()


def test_a_cluster_that_was_here_and_has_ended_is_told(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setattr(connection, "STARTED", tmp_path / "started")
    (tmp_path / "started").write_text(place)
    with pytest.raises(SettingError, match=f"{place}: nobody answers there"):
        connection._check("auto")
    (tmp_path / "started").unlink()
    assert connection._check("auto") is None


def test_a_worker_says_why_it_cannot_work(tmp_path):
    from toy_batch import EchoCommand

    given = argparse.Namespace(model="toy")
    assert "does not see" in BatchWorker(EchoCommand(), given, tmp_path, "mark", "").ready()
    (tmp_path / ".mmaccel").mkdir()
    assert "does not see" in BatchWorker(EchoCommand(), given, tmp_path, "mark", "").ready(), (
        "another folder of that name"
    )
    (tmp_path / ".mmaccel/mark").touch()
    worker = BatchWorker(EchoCommand(), given, tmp_path, "mark", "")
    assert worker.ready() == ""
    item = Item("a", {"text": "a", "reference": str(tmp_path / "none.wav")}, files=("reference",))
    made = worker.make(Task(item, tmp_path / "a.txt"))
    assert "does not see" in made.error and "none.wav" in made.error
    given.model = "none"
    assert BatchWorker(EchoCommand(), given, tmp_path, "mark", "").ready() == "there is no such model"
