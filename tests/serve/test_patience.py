"""Connections that say nothing, or half of a request, are closed; those that ask are not."""

import asyncio
import socket
import threading

import pytest
import uvicorn

from mmaccel.serve.patience import Patience

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture
def port(monkeypatch):
    """A server whose answers take longer than a head may."""
    monkeypatch.setattr(Patience, "seconds", 0.2)

    async def app(scope, receive, send):
        await asyncio.sleep(0.7)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    looks = {"log_level": "critical", "lifespan": "off", "timeout_graceful_shutdown": 1, "timeout_keep_alive": 60}
    runs = uvicorn.Server(uvicorn.Config(app, http=Patience, **looks))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        thread = threading.Thread(target=runs.run, kwargs={"sockets": [taken]})
        thread.start()
        yield taken.getsockname()[1]
        runs.should_exit = True
        thread.join()


def said(line):
    """All that comes until the server closes the connection."""
    found = b""
    while part := line.recv(4096):
        found += part
    return found


@pytest.mark.parametrize("sent", (b"", b"GET / HT", HEAD[:-2]))
def test_half_a_request_ends(port, sent):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(sent)
        assert said(line) == b""


def test_answers_that_take_long_are_given_and_half_of_a_second_request_ends(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(HEAD)
        line.sendall(b"GET")
        found = said(line)
    assert found.startswith(b"HTTP/1.1 200") and found.endswith(b"ok") and found.count(b"200") == 1
