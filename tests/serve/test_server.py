"""The server around an endpoint: who may ask, the queue, clients that leave, figures."""

import asyncio
import contextlib
import http.client
import queue
import socket
import threading
import time
import weakref

import httpx
import openai
import pytest
import torch
from listening import client, listening

from mmaccel.errors import MemoryLimitError, PromptError
from mmaccel.serve import app
from mmaccel.serve.app import Server, ServerLimits
from mmaccel.serve.endpoint import Endpoint, Fields, Left, Refused, Request
from mmaccel.serve.keys import Key
from mmaccel.serve.metrics import Metrics
from mmaccel.serve.sockets import Connection, Sockets
from mmaccel.serve.worker import Job, Worker


class Slow(Endpoint):
    """Answers when it is let; notes its batches."""

    path = "/v1/echo"

    def __init__(self):
        super().__init__("slow", None, None)
        self.began, self.may = queue.SimpleQueue(), threading.Semaphore(0)
        self.batches = []

    def parse(self, body):
        fields = Fields(body)
        text, group = fields.text("text", 100), fields.take("group")
        pieces = queue.SimpleQueue() if fields.take("stream") else None
        fields.end()
        if text == "bad":
            raise PromptError("the prompt is bad")
        request = Request(group=group, pieces=pieces)
        request.text = text
        return request

    def answer(self, requests):
        self.batches.append([request.text for request in requests])
        self.began.put(self.batches[-1])
        while not self.may.acquire(timeout=0.02):
            if all(request.left.is_set() for request in requests):
                raise Left
        if "fails" in self.batches[-1]:
            raise ZeroDivisionError("secret of the machine")
        for request in requests:
            if request.pieces is not None:
                request.pieces.put(request.text)
        if "fails late" in self.batches[-1]:
            raise ZeroDivisionError("secret of the machine")
        return [{"text": request.text} for request in requests]

    def piece(self, request, text):
        return {"piece": text}


@pytest.fixture
def slow():
    return Slow()


@pytest.fixture
def served(slow):
    with listening(slow, ServerLimits(body_bytes=1000, waiting=2, batch=3)) as (server, address):
        yield server, address
        for _ in range(20):
            slow.may.release()


def post(address, body, **more):
    return httpx.post(f"{address}/v1/echo", json=body, timeout=60, **more)


def later(address, body):
    """A request in a thread; its answer is put into the list that is returned."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(address, body)))
    thread.start()
    return thread, answers


def until(holds):
    for _ in range(3000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never held")


def test_an_answer_and_the_figures(served, slow):
    _, address = served
    slow.may.release()
    answer = post(address, {"text": "hello", "model": "slow"})
    assert (answer.status_code, answer.json()) == (200, {"text": "hello"})
    figures = httpx.get(f"{address}/metrics").text
    assert 'mmaccel_requests_total{status="200"} 1.0' in figures and "mmaccel_batch_rows_count 1.0" in figures
    assert httpx.get(f"{address}/health").json() == {"status": "ok", "model": "slow"}
    assert [model.id for model in client(address).models.list()] == ["slow"]


def test_a_full_queue_is_answered_at_once_while_the_model_runs(served, slow):
    _, address = served
    waiting = [later(address, {"text": "first"})]
    assert slow.began.get(timeout=30) == ["first"]
    waiting += [later(address, {"text": str(number)}) for number in range(2)]
    until(lambda: len(served[0].worker._jobs) == 2)
    refused = post(address, {"text": "one too many"})
    assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
    assert "2 requests are waiting" in refused.json()["error"]["message"]
    for _ in waiting:
        slow.may.release()
    for thread, _ in waiting:
        thread.join()
    assert sorted(answers[0].json()["text"] for _, answers in waiting) == ["0", "1", "first"]


def test_what_has_no_place_is_not_even_read(slow):
    reading, may = [], threading.Event()
    with listening(slow, ServerLimits(waiting=2)) as (server, address):

        def read(body, parse=slow.parse):
            reading.append(body)
            may.wait(30)
            return parse(body)

        slow.parse = read
        threads = [later(address, {"text": str(number)}) for number in range(3)]
        until(lambda: server.parsing == 2 + 1)
        assert post(address, {"text": "one too many"}).status_code == 503
        assert "one too many" not in str(reading)
        may.set()
        for _ in threads:
            slow.may.release()
        for thread, _ in threads:
            thread.join()
    assert server.parsing == 0 and {answers[0].status_code for _, answers in threads} <= {200, 503}


def test_requests_that_fit_together_run_together(slow):
    with listening(slow, ServerLimits(waiting=8, batch=3)) as (server, address):
        threads = [later(address, {"text": "first"})]
        slow.began.get(timeout=30)
        for number, group in enumerate("aabaa"):
            threads.append(later(address, {"text": f"{number}{group}", "group": group}))
            until(lambda number=number: len(server.worker._jobs) == number + 1)
        for _ in threads:
            slow.may.release()
        for thread, answers in threads:
            thread.join()
            assert answers[0].status_code == 200
    assert slow.batches == [["first"], ["0a", "1a", "3a"], ["2b"], ["4a"]]


def test_those_who_left_neither_wait_nor_take_room_of_a_batch(slow):
    worker = Server(slow, ServerLimits(waiting=8, batch=2)).worker

    def asked(text, group=None):
        request = Request(group=group)
        request.text = text
        return request, worker.submit(request, time.monotonic() + 60)

    def waiting():
        return worker.metrics.registry.get_sample_value("mmaccel_waiting")

    first = asked("first")
    assert slow.began.get(timeout=30) == ["first"]
    (head, _), (one, _), (left, _), (other, answer) = (asked(text, "a") for text in ("head", "one", "left", "other"))
    assert waiting() == 4
    for request in (head, left):
        request.left.set()
    assert waiting() == 2
    slow.may.release(2)
    assert answer.result(timeout=30) == {"text": "other"} and first[1].result() == {"text": "first"}
    assert slow.batches == [["first"], ["one", "other"]] and waiting() == 0
    worker.close()
    with pytest.raises(Refused, match="the server ends"):
        asked("late")


@pytest.mark.parametrize("where", ("parsed", "running", "streamed"))
def test_a_request_for_which_an_ending_server_waited_long_enough_is_told_so(slow, monkeypatch, where):
    """A bare 500, or half a stream, tells a client nothing."""
    parse = slow.parse

    def parsed(body):
        slow.began.put(body["text"])
        time.sleep(3 if where == "parsed" else 0)  # longer than the server of the tests waits
        return parse(body)

    monkeypatch.setattr(slow, "parse", parsed)
    monkeypatch.setattr(app, "CHECK", 0.1)
    with listening(slow) as (server, address):
        thread, answers = later(address, {"text": "long", "stream": where == "streamed"})
        slow.began.get(timeout=30)
        if where != "parsed":
            slow.began.get(timeout=30)
        time.sleep(0.5 if where == "streamed" else 0)
    thread.join()
    error = '"message": "the server ends: try again later"'
    if where == "streamed":
        *told, last, _ = answers[0].text.split("\n\n")
        assert error in told[-1] and last == "data: [DONE]"
    else:
        assert answers[0].status_code == 503 and answers[0].headers["retry-after"]
        assert answers[0].json()["error"]["message"] in error
    assert b'mmaccel_requests_total{status="503"} 1.0' in server.metrics.text()


def test_a_stream_that_is_heard_when_the_server_ends_is_no_failure(slow):
    """Its websocket is closed by then; a traceback for each would stand in the log."""

    async def talk(_):
        await asyncio.sleep(60)

    async def ended():
        streams = Sockets(slow, Key(""), Metrics(), 1, 60.0)
        task = asyncio.create_task(streams._safely(talk, Connection(None, 60.0)))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(ended()) is None


def test_a_client_that_leaves_frees_its_place(served, slow):
    server, address = served
    host = address.removeprefix("http://")
    running, waits = http.client.HTTPConnection(host), http.client.HTTPConnection(host)
    for connection, text in ((running, "running"), (waits, "waits")):
        connection.request("POST", "/v1/echo", f'{{"text": "{text}"}}')
        if text == "running":
            slow.began.get(timeout=30)
    until(lambda: len(server.worker._jobs) == 1)
    waits.close()
    until(lambda: server.worker._jobs[0].request.left.is_set())
    running.close()
    slow_one = later(address, {"text": "next"})
    assert slow.began.get(timeout=30) == ["next"], "neither of the two keeps the model"
    slow.may.release()
    slow_one[0].join()
    assert slow_one[1][0].json() == {"text": "next"}


def test_a_stream_ends_with_its_text(served, slow):
    _, address = served
    slow.may.release()
    lines = post(address, {"text": "hello", "stream": True}).text.split("\n\n")
    assert lines == ['data: {"piece": "hello"}', 'data: {"piece": null}', "data: [DONE]", ""]
    slow.may.release()
    lines = post(address, {"text": "fails late", "stream": True}).text.split("\n\n")
    assert lines[0] == 'data: {"piece": "fails late"}' and lines[2] == "data: [DONE]"
    assert "the server failed" in lines[1] and "secret" not in str(lines)
    figures = httpx.get(f"{address}/metrics").text
    assert all(f'mmaccel_requests_total{{status="{status}"}} 1.0' in figures for status in (200, 500))


def test_a_proxy_is_told_to_hand_a_stream_on_as_it_comes(served, slow):
    slow.may.release()
    headers = post(served[1], {"text": "hello", "stream": True}).headers
    assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")


def test_a_stream_that_fails_before_its_first_word_is_answered_as_what_it_is(slow):
    def answer(requests):
        raise PromptError("it is too long") if requests[0].text == "long" else ZeroDivisionError

    slow.answer = answer
    with listening(slow) as (_, address):
        for text, status, message in (("long", 400, "it is too long"), ("fails", 500, "the server failed")):
            answer = post(address, {"text": text, "stream": True})
            assert answer.status_code == status and answer.json()["error"]["message"].startswith(message)
        figures = httpx.get(f"{address}/metrics").text
    assert all(f'mmaccel_requests_total{{status="{status}"}} 1.0' in figures for status in (400, 500))


def test_a_stream_that_waits_for_its_turn_begins_meanwhile(served, slow, monkeypatch):
    monkeypatch.setattr(app, "CHECK", 0.1)
    with httpx.stream("POST", f"{served[1]}/v1/echo", json={"text": "hello", "stream": True}, timeout=20) as answer:
        assert answer.status_code == 200, "before the model has said a word"
        slow.may.release()
        assert answer.read().startswith(b'data: {"piece": "hello"}')


@pytest.mark.parametrize("check", (0.1, 5.0))
def test_a_stream_that_its_client_leaves_is_counted_as_left(served, slow, monkeypatch, check):
    """Once its answer has begun, and before."""
    monkeypatch.setattr(app, "CHECK", check)
    _, address = served
    with contextlib.suppress(httpx.ReadTimeout), httpx.Client(timeout=1) as leaver:
        leaver.post(f"{address}/v1/echo", json={"text": "hello", "stream": True})
    assert slow.began.get(timeout=30) == ["hello"]
    left = 'mmaccel_requests_total{status="499"} 1.0'
    until(lambda: left in httpx.get(f"{address}/metrics").text)


@pytest.mark.parametrize(("version", "check"), (("2.3", 0.0), ("2.4", 0.0), ("2.4", 5.0)))
def test_a_client_that_is_gone_before_the_first_event_is_counted_and_given_up(slow, monkeypatch, version, check):
    monkeypatch.setattr(app, "CHECK", check)
    messages = [{"type": "http.request", "body": b'{"text": "hello", "stream": true}'}]
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    request = {"type": "http", "method": "POST", "path": slow.path, "query_string": b"", "headers": headers}
    parsed = []

    async def receive():
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(_):
        raise OSError("the connection is closed")

    parse = slow.parse
    monkeypatch.setattr(slow, "parse", lambda body: parsed.append(parse(body)) or parsed[-1])
    server = Server(slow)
    try:
        with contextlib.suppress(OSError):  # which servers of the older version log
            asyncio.run(server.app({**request, "asgi": {"version": "3.0", "spec_version": version}}, receive, send))
        assert b'mmaccel_requests_total{status="499"} 1.0' in server.metrics.text()
        assert parsed[0].left.is_set()
    finally:
        slow.may.release()
        server.close()


def test_a_promise_is_counted_as_what_it_came_to_when_it_ends(slow, monkeypatch):
    monkeypatch.setattr(Slow, "later", "clip")
    with listening(slow, ServerLimits(waiting=4)) as (_, address):

        def counted(*statuses):
            figures = httpx.get(f"{address}/metrics").text
            return all(f'mmaccel_requests_total{{status="{status}"}} 1.0' in figures for status in statuses)

        asked = [post(address, {"text": text}).json()["id"] for text in ("hello", "fails", "deleted", "waits")]
        assert "mmaccel_requests_total{" not in httpx.get(f"{address}/metrics").text, "none has ended"
        slow.may.release(2)
        until(lambda: counted(200, 500))
        httpx.delete(f"{address}/v1/echo/{asked[2]}")
        until(lambda: counted(499))
        httpx.delete(f"{address}/v1/echo/{asked[3]}")
        until(lambda: 'mmaccel_requests_total{status="499"} 2.0' in httpx.get(f"{address}/metrics").text)
        assert "mmaccel_request_seconds_count 1.0" in httpx.get(f"{address}/metrics").text


def test_what_takes_too_long_is_given_up(slow):
    with listening(slow, ServerLimits(deadline=1)) as (_, address):
        events = post(address, {"text": "forever", "stream": True}).text.split("\n\n")
        assert len(events) == 3 and "took too long" in events[0] and events[1] == "data: [DONE]"
        answer = post(address, {"text": "forever"})
        assert answer.status_code == 504 and "took too long" in answer.json()["error"]["message"]
        slow.may.release(2)  # what was given up may take one before it notices
        assert post(address, {"text": "again"}).json() == {"text": "again"}


def test_what_failed_or_took_too_long_is_not_asked_for_again_by_openai_s_client(slow):
    slow.may.release(3)
    with listening(slow, ServerLimits(deadline=1)) as (_, address):
        ask = client(address).with_options(max_retries=2)
        with pytest.raises(openai.InternalServerError, match="the server failed"):
            ask.post("/echo", body={"text": "fails"}, cast_to=object)
        while slow.may.acquire(blocking=False):
            pass
        with pytest.raises(openai.APIStatusError, match="took too long"):
            ask.post("/echo", body={"text": "forever"}, cast_to=object)
    assert slow.batches == [["fails"], ["forever"]]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    (
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 413, "there is not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 413, "there is not enough memory"),
        (MemoryError(), 413, "ask for less, such as fewer or smaller pictures"),
        (MemoryLimitError("it needs 3 GB"), 400, "it needs 3 GB"),
        (RuntimeError("shapes cannot be multiplied"), 500, "the server failed"),
    ),
)
def test_too_little_memory_is_told_as_what_it_is(slow, error, status, message):
    def answer(requests):
        raise error

    slow.answer = answer
    with listening(slow) as (_, address):
        answered = post(address, {"text": "much"})
    assert answered.status_code == status and message in answered.json()["error"]["message"]


def test_long_answers_are_told_apart_by_their_times(served, slow):
    figures = httpx.get(f"{served[1]}/metrics").text
    assert all(f'mmaccel_request_seconds_bucket{{le="{most}"}}' in figures for most in ("0.1", "10.0", "1000.0"))


def test_a_failure_is_told_without_the_machine_s_secrets(served, slow):
    _, address = served
    slow.may.release()
    answer = post(address, {"text": "fails"})
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.json()["error"]["type"] == "server_error"
    slow.may.release()
    assert post(address, {"text": "next"}).status_code == 200


def test_a_request_that_fails_takes_no_other_with_it(slow):
    with listening(slow, ServerLimits(waiting=8, batch=3)) as (server, address):
        threads = [later(address, {"text": "first"})]
        slow.began.get(timeout=30)
        for number, text in enumerate(("good", "fails", "fine")):
            threads.append(later(address, {"text": text, "group": "a"}))
            until(lambda number=number: len(server.worker._jobs) == number + 1)
        for _ in range(5):
            slow.may.release()
        for thread, _ in threads:
            thread.join()
    assert [answers[0].status_code for _, answers in threads] == [200, 200, 500, 200]
    assert slow.batches == [["first"], ["good", "fails", "fine"], ["good"], ["fails"], ["fine"]]


def test_only_failures_of_the_server_are_logged_with_their_place(slow, caplog):
    def answer(requests):
        raise PromptError("it is too long") if requests[0].text == "long" else ZeroDivisionError

    slow.answer = answer
    with caplog.at_level("INFO", logger="mmaccel.serve"), listening(slow) as (_, address):
        assert [post(address, {"text": text}).status_code for text in ("long", "fails")] == [400, 500]
    refused, failed = [record for record in caplog.records if record.name == "mmaccel.serve"]
    assert (refused.levelname, refused.exc_info) == ("INFO", None) and "it is too long" in refused.getMessage()
    assert failed.levelname == "ERROR" and failed.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("stream", (False, True))
def test_a_failure_that_no_future_takes_is_told_at_once(slow, stream):
    """As of a processor that looks for one more picture than there are."""
    slow.answer = lambda requests: [next(iter(()))]
    with listening(slow, ServerLimits(deadline=50)) as (_, address):
        began = time.monotonic()
        assert post(address, {"text": "fails", "stream": stream}).status_code == 500
        assert time.monotonic() - began < 40


class Large:
    """What a run holds on a GPU."""


class Holding(Endpoint):
    """Fails with a cause, while it holds something large; notes what earlier runs hold still."""

    path = "/v1/echo"

    def __init__(self):
        super().__init__("holding", None, None)
        self.large, self.alive = [], []

    def parse(self, body):
        return Request()

    def answer(self, requests):
        self.alive.append([one() for one in self.large if one() is not None])
        large = Large()
        self.large.append(weakref.ref(large))
        try:
            raise RuntimeError("out of memory")
        except RuntimeError as error:
            raise PromptError("too long") from error


def test_what_a_failed_run_held_is_free_before_the_next_one_and_while_its_error_is_kept():
    endpoint = Holding()
    worker = Worker(endpoint, Metrics())
    jobs = [Job(Request(), time.monotonic() + 60) for _ in range(2)]
    worker._run(jobs)
    worker.close()
    assert [str(job.future.exception()) for job in jobs] == ["too long"] * 2
    assert endpoint.alive == [[], [], []] and [one() for one in endpoint.large] == [None] * 3


def test_half_of_a_character_is_refused(served, slow):
    _, address = served
    answer = httpx.post(f"{address}/v1/echo", content=b'{"text": "\\ud83d"}')
    assert answer.status_code == 400 and "lone surrogate" in answer.json()["error"]["message"]
    for coded in ("utf-8", "utf-16"):
        answer = httpx.post(f"{address}/v1/echo", content='{"text": "\ud83d"}'.encode(coded, "surrogatepass"))
        assert answer.status_code == 400 and "is no JSON" in answer.json()["error"]["message"]
    slow.may.release()
    assert httpx.post(f"{address}/v1/echo", content=b'{"text": "\\ud83d\\ude00"}').json() == {"text": "\U0001f600"}


@pytest.mark.parametrize(
    ("given", "status", "message"),
    (
        ({"content": b"{"}, 400, "is no JSON"),
        ({"content": b"[" * 900}, 400, "is no JSON"),
        ({"content": b"[1]"}, 400, "no JSON object"),
        ({"content": b"x" * 2000}, 413, "more than"),
        ({"json": {"text": "a", "model": "other"}}, 404, "unknown model 'other': this server has 'slow'"),
        ({"json": {"text": "bad"}}, 400, "the prompt is bad"),
        ({"json": {"text": "a", "beams": 2}}, 400, "'beams' is not used here"),
        ({"json": {"text": "a"}, "headers": {"Host": "evil.example"}}, 403, "does not answer to"),
        ({"json": {"text": "a"}, "headers": {"Origin": "http://evil.example"}}, 403, "another site"),
    ),
)
def test_bad_requests_are_refused(served, given, status, message):
    answer = httpx.post(f"{served[1]}/v1/echo", **given)
    assert answer.status_code == status and message in answer.text


def test_a_request_of_very_many_values_is_not_read(slow):
    with listening(slow) as (_, address):
        bomb = b'{"text": [' + b"{}," * 300_001 + b"{}]}"
        answer = httpx.post(f"{address}/v1/echo", content=bomb)
    assert answer.status_code == 413 and "more than 300000 values" in answer.text


def test_other_paths_and_ways_are_none(served):
    for path in ("/echo", "/v1/other"):
        answer = httpx.post(f"{served[1]}{path}")
        message = answer.json()["error"]["message"]
        assert answer.status_code == 404 and message.startswith(f"Not Found: {path}, this server answers POST /v1/echo")
        assert f"base_url={served[1]}/v1)" in message
    assert httpx.get(f"{served[1]}/v1/echo").status_code == 405


@pytest.mark.parametrize(("size", "seconds", "status"), (("100", 0.2, 408), ("99999999999", 20, 413)))
def test_a_slow_upload_is_not_waited_for_nor_one_that_will_be_too_large(slow, size, seconds, status):
    with listening(slow, ServerLimits(read_seconds=seconds)) as (_, address):
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        connection.putrequest("POST", "/v1/echo")
        connection.putheader("Content-Length", size)
        connection.endheaders(b'{"text": ')
        assert connection.getresponse().status == status
        connection.close()


def test_the_key_is_asked_for(slow):
    with listening(slow, key="right") as (_, address):
        for path in ("/v1/models", "/v1/models/slow", "/metrics"):
            assert httpx.get(f"{address}{path}").status_code == 401
        wrong = post(address, {"text": "a"}, headers={"Authorization": "Bearer wröng".encode()})
        assert wrong.status_code == 401 and "API key" in wrong.json()["error"]["message"]
        slow.may.release()
        assert post(address, {"text": "a"}, headers={"Authorization": "Bearer right"}).status_code == 200
        models = client(address, "right").models
        assert [model.id for model in models.list()] == ["slow"] and models.retrieve("slow").id == "slow"
        with pytest.raises(openai.NotFoundError, match="this server has 'slow'"):
            models.retrieve("fast/er")
        assert httpx.get(f"{address}/health").status_code == 200


@pytest.mark.parametrize("scheme", ("Bearer ", "bearer ", "token ", "TOKEN ", "bearer  ", ""))
def test_the_scheme_of_a_key_may_be_written_in_any_case(slow, scheme):
    """Deepgram's clients for .NET and Go write "token"."""
    with listening(slow, key="my right") as (_, address):
        for key, status in (("my right", 200), ("my wrong", 401)):
            headers = {"Authorization": f"{scheme}{key}"}
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == status


def test_a_key_may_have_any_letters(slow):
    with listening(slow, key="schlüssel") as (_, address):
        for key, status in (("schlüssel", 200), ("schlussel", 401)):
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("more", "status"), (("", 200), ("Origin: http://localhost\r\n", 403), ("Host: evil.example\r\n", 403))
)
def test_health_checks_without_a_host_are_answered_and_pages_are_not(served, more, status):
    """As HAProxy asks by default; what comes from a page has always a host."""
    host, port = served[1].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(f"GET /health HTTP/1.0\r\n{more}\r\n".encode())
        assert line.makefile("rb").readline().split()[1] == str(status).encode()


def test_other_names_may_be_allowed(slow):
    with listening(slow, hosts=("ai.example.org",)) as (_, address):
        assert httpx.get(f"{address}/health", headers={"Host": "ai.example.org"}).status_code == 200
        assert httpx.get(f"{address}/health", headers={"Host": "ai.example.com"}).status_code == 403


def test_the_end_answers_those_who_wait(slow):
    with listening(slow) as (server, address):
        threads = [later(address, {"text": "runs"})]
        slow.began.get(timeout=30)
        left = server.worker.submit(Request(), time.monotonic() + 60)
        assert left.cancel(), "its client left"
        threads.append(later(address, {"text": "waits"}))
        until(lambda: len(server.worker._jobs) == 2)
        slow.may.release()
        server.close()
        assert post(address, {"text": "late"}).status_code == 503
        for thread, _ in threads:
            thread.join()
    assert [answers[0].status_code for _, answers in threads] == [200, 503]
    assert not server.worker._thread.is_alive()
