"""A server of the tests' own, on a free port, and a client of OpenAI's package."""

import contextlib
import socket
import threading

import openai
import uvicorn

from mmaccel.serve.app import Server
from mmaccel.serve.run import configured


@contextlib.contextmanager
def listening(endpoint, limits=None, key="", hosts=()):
    """The server, and its address."""
    server = Server(endpoint, limits, key, hosts)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        runs = uvicorn.Server(configured(server, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=runs.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{taken.getsockname()[1]}"
        finally:
            runs.should_exit = True
            thread.join()
            server.close()


def client(address, key="none"):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=120)
