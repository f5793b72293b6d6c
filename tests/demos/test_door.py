"""Who may talk to the demo, how much they may send, and what is left of it at the end."""

import argparse
import asyncio
import http.client
import os
import signal
import tempfile
import time
import types
from pathlib import Path

import gradio as gr
import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from mmaccel.cli import demo as demo_commands
from mmaccel.cli import main as cli
from mmaccel.demos import app
from mmaccel.demos.app.limits import Limits
from mmaccel.demos.app.served import DemoDoor, take_only_uploads
from mmaccel.demos.app.uploads.quota import LEAST, OVERHEAD, Quota

MIB = 2**20
CLOSED_TOO = ("/gradio_api/undo-vibe-edit/", "/gradio_api/component_server", "/gradio_api/stream/x/y")


async def echo(request):
    body = await request.body()
    return PlainTextResponse(str(len(body)))


async def socket(websocket):
    await websocket.accept()
    await websocket.close()


def behind(wrap):
    routes = [Route("/{path:path}", echo, methods=["GET", "POST", "OPTIONS"]), WebSocketRoute("/socket", socket)]
    return TestClient(wrap(Starlette(routes=routes)), "http://localhost:7860")


@pytest.fixture
def door():
    return behind(lambda app: DemoDoor(app, ["demo.example.org", "192.168.7.7:80"]))


@pytest.mark.parametrize(
    "host", ("localhost:7860", "LOCALHOST", "127.0.0.1:1", "[::1]:7860", "demo.example.org", "192.168.7.7:7860")
)
def test_own_names_come_in(door, host):
    assert door.get("/config", headers={"Host": host}).status_code == 200
    origin = {"Host": host, "Origin": f"http://{host}"}
    assert door.post("/gradio_api/upload", headers=origin, content=b"123").text == "3"


@pytest.mark.parametrize(
    "host",
    ("evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.7.8", "", "["),
)
@pytest.mark.parametrize("path", ("/", "/config", "/gradio_api/queue/data?session_hash=x", "/gradio_api/file=/etc/x"))
def test_foreign_names_do_not(door, host, path):
    """A page whose name leads here after it was loaded: host and origin are its own, and agree."""
    answer = door.get(path, headers={"Host": host, "Origin": f"http://{host}"})
    assert answer.status_code == 403 and f"--allow-host {host.split(':')[0].strip('[')}" in answer.text


def test_two_hosts_are_none(door):
    assert door.get("/", headers=[("Host", "localhost"), ("Host", "evil.example")]).status_code == 403


@pytest.mark.parametrize(
    "origin",
    ("https://evil.example", "null", "http://localhost:3000", "http://localhost", "http://[", "localhost:7860"),
)
@pytest.mark.parametrize("method", ("GET", "POST", "OPTIONS"))
def test_pages_of_other_sites_do_not(door, origin, method):
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    answer = door.request(method, "/gradio_api/upload", headers=headers)
    assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    (
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
    ),
)
def test_other_sites_may_lead_here_but_embed_nothing(door, headers, status):
    assert door.get("/config", headers=headers).status_code == status


def test_sockets_have_the_same_door(door):
    with door.websocket_connect("/socket", headers={"Host": "localhost"}):
        pass
    with (
        pytest.raises(WebSocketDisconnect) as left,
        door.websocket_connect("/socket", headers={"Host": "evil.example"}),
    ):
        pass
    assert left.value.code == 1008


def test_the_address_of_the_connection_is_its_own(door):
    """Where it listens on all addresses of a machine, they need not be named."""
    assert door.get("/", headers={"Host": "10.1.2.3:7860"}).status_code == 403
    reached = TestClient(door.app, "http://10.1.2.3:7860")
    assert reached.get("/").status_code == 200


@pytest.mark.parametrize(
    "path", ("/gradio_api/process_recording", "/gradio_api/vibe-edit/", "/gradio_api/proxy=x", *CLOSED_TOO)
)
def test_parts_that_are_not_used_are_closed(door, path):
    assert door.post(path).status_code == 403


@pytest.mark.parametrize("file", ("/tmp/x/vibe-reel.mp4", "/data/stream/tmp/clip.mp4", "/x/proxy=1.png"))
def test_visitors_name_their_files_as_they_like(door, file):
    assert door.get(f"/gradio_api/file={file}").status_code == 200
    assert door.get(f"/gradio_api/stream/file={file}").status_code == 403


def test_a_refusal_is_short_plain_and_in_the_log(door, caplog):
    answer = door.get("/", headers={"Host": f"{'x' * 150}.example"})
    assert answer.status_code == 403 and "x" * 100 in answer.text and "x" * 101 not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff" and "refused: this demo" in caplog.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_dot_at_the_end_of_a_name_is_the_same_name(door):
    for host, status in (("localhost.", 200), ("demo.example.org.:7860", 200), ("evil.example.", 403)):
        assert door.get("/config", headers={"Host": host}).status_code == status


def test_the_server_itself_is_let_through():
    """Its start and end are no requests."""
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["type"])

    for wrapped in (DemoDoor(inner), Quota(inner, ".", Limits())):
        asyncio.run(wrapped({"type": "lifespan"}, None, None))
    assert seen == ["lifespan", "lifespan"]


def quota(folder, **limits):
    return behind(lambda app: Quota(app, folder, Limits(upload_bytes=MIB, **limits)))


def test_one_request_may_be_as_large_as_one_upload(tmp_path):
    client = quota(tmp_path)
    most = MIB + OVERHEAD
    for path in ("/gradio_api/upload", "/gradio_api/queue/join"):
        assert client.post(path, content=bytes(most)).text == str(most)
        assert client.post(path, content=bytes(most + 1)).status_code == 413
    assert client.post("/upload", content=b"", headers={"Content-Length": "-1"}).status_code == 413
    assert client.post("/other", content=(bytes(most) for _ in range(2))).status_code == 413  # nothing announced


def test_files_of_visitors_have_a_largest_sum(tmp_path):
    client = quota(tmp_path, disk_bytes=2 * MIB)
    assert client.post("/gradio_api/upload", content=bytes(MIB)).status_code == 200
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "clip.mp4").write_bytes(bytes(MIB))
    assert client.post("/gradio_api/upload", content=bytes(MIB)).status_code == 200, "exactly full"
    answer = client.post("/gradio_api/upload/", content=bytes(MIB + 1))
    assert answer.status_code == 507 and "try again later" in answer.text
    assert client.post("/gradio_api/queue/join", content=bytes(MIB + 1)).status_code == 200, "no file"
    (tmp_path / "a" / "clip.mp4").unlink()
    assert client.post("/gradio_api/upload", content=bytes(MIB + 1)).status_code == 200


def test_small_files_count_too(tmp_path):
    for number in range(MIB // LEAST):
        (tmp_path / str(number)).touch()
    assert quota(tmp_path, disk_bytes=MIB).post("/upload", content=b"1").status_code == 507


def test_uploads_on_their_way_count(tmp_path):
    inner, told = [], []

    async def slow(scope, receive, send):
        if not told:
            told.append(inner[0].app.coming)
            told.append(inner[0].post("/upload", content=bytes(MIB)).status_code)
        await PlainTextResponse("")(scope, receive, send)

    inner.append(TestClient(Quota(slow, tmp_path, Limits(upload_bytes=MIB, disk_bytes=2 * MIB - 1))))
    assert inner[0].post("/upload", content=bytes(MIB)).status_code == 200
    assert told == [MIB, 507] and inner[0].app.coming == 0


def test_an_upload_that_breaks_off_gives_its_room_back(tmp_path):
    client = quota(tmp_path, disk_bytes=MIB)
    scope = {"type": "http", "method": "POST", "path": "/upload", "query_string": b"", "root_path": ""}
    scope["headers"] = [(b"content-length", str(MIB).encode())]
    messages = [{"type": "http.request", "body": b"1", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def send(message):
        """Nobody is there to receive it."""

    with pytest.raises(MultiPartException, match="broken off"):
        asyncio.run(client.app(scope, receive, send))
    assert client.app.coming == 0 and client.post("/upload", content=bytes(MIB)).status_code == 200


async def received(app, path, bodies, end="http.disconnect"):
    """What the app behind a quota gets of a request whose size is not announced."""
    messages = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    messages[-1]["more_body"] = False
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": "", "headers": []}
    messages.append({"type": end})

    async def receive():
        return messages.pop(0)

    async def send(message):
        """Nobody is there to receive it."""

    await app(scope, receive, send)


def test_uploads_of_unknown_size_have_the_room_that_is_left(tmp_path):
    seen = []

    async def inner(scope, receive, send):
        seen.append([layers[0].coming])
        while (message := await receive())["type"] == "http.request":
            seen[-1].append(len(message["body"]))

    layers = [Quota(inner, tmp_path, Limits(upload_bytes=3 * MIB, disk_bytes=2 * MIB))]
    asyncio.run(received(layers[0], "/upload", [bytes(MIB), bytes(MIB)]))  # which then leaves: it is all there
    assert seen == [[2 * MIB, MIB, MIB]] and layers[0].coming == 0
    with pytest.raises(MultiPartException, match="2 MiB"):
        asyncio.run(received(layers[0], "/upload", [bytes(MIB), bytes(MIB + 1)]))
    assert seen[1] == [2 * MIB, MIB] and layers[0].coming == 0
    asyncio.run(received(layers[0], "/queue/join", [bytes(2 * MIB), bytes(2 * MIB)]))
    with pytest.raises(HTTPException) as refused:
        asyncio.run(received(layers[0], "/queue/join", [bytes(2 * MIB), bytes(2 * MIB + 1)]))
    assert refused.value.status_code == 413 and [one[0] for one in seen[2:]] == [0, 0], "nothing is stored"


@pytest.mark.parametrize("method", ("GET", "HEAD", "OPTIONS"))
def test_who_only_asks_needs_no_room(tmp_path, method):
    (tmp_path / "full").touch()
    client = quota(tmp_path, disk_bytes=1)
    assert client.request(method, "/upload", headers={"Content-Length": "99"}).status_code == 200
    answer = client.post("/upload", content=b"1")
    assert answer.status_code == 507 and client.post("/upload", headers={"Content-Length": "x"}).status_code == 413
    assert f"{(MIB + OVERHEAD) / MIB:.0f} MiB" in client.post("/upload", content=bytes(3 * MIB)).text


def test_what_aborted_uploads_leave_is_removed(tmp_path):
    for name, age in (("tmpold", 61), ("tmpnew", 5), ("clip", 61)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    quota(tmp_path, file_seconds=60).post("/upload", content=b"1")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["clip", "tmpnew"]


def test_the_app_is_behind_them(url, frame):
    """As it is served: jobs, results and uploads, from a page of another site and from its own."""
    foreign = {"Host": "evil.example:7860", "Origin": "http://evil.example:7860"}
    crossing = {"Origin": "https://evil.example"}
    join = {"data": [], "fn_index": 0, "session_hash": "x"}
    for headers in (foreign, crossing):
        for call in (
            lambda headers: httpx.get(f"{url}config", headers=headers),
            lambda headers: httpx.post(f"{url}gradio_api/queue/join", json=join, headers=headers),
            lambda headers: httpx.get(f"{url}gradio_api/queue/data?session_hash=x", headers=headers),
            lambda headers: httpx.post(f"{url}gradio_api/upload", files={"files": b"1"}, headers=headers),
            lambda headers: httpx.options(url, headers={**headers, "Access-Control-Request-Method": "POST"}),
        ):
            answer = call(headers)
            assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
    assert httpx.get(f"{url}config", headers={"Host": "demo.example.org"}).status_code == 200
    own = httpx.post(f"{url}gradio_api/upload", files={"files": b"1"}, headers={"Origin": url.rstrip("/")})
    assert own.status_code == 200 and Path(own.json()[0]).read_bytes() == b"1"
    server = http.client.HTTPConnection(httpx.URL(url).netloc.decode())
    server.putrequest("POST", "/gradio_api/upload")
    server.putheader("Content-Length", str(frame.limits.upload_bytes + OVERHEAD + 1))
    server.endheaders()
    assert server.getresponse().status == 413
    server.close()


def test_nothing_is_fetched_for_a_visitor():
    taking = [block for block in app.build().blocks.values() if isinstance(block, gr.Video | gr.Audio)]
    assert len(taking) >= 2
    for component in taking:
        for address in ("http://127.0.0.1:1/clip.mp4", "https://example.org/clip.mp4"):
            with pytest.raises(gr.Error, match="Upload the file itself"):
                asyncio.run(component.async_move_resource_to_block_cache(address))


def test_each_component_takes_its_own_files():
    def component(name):
        async def take(file):
            return f"{name} {file}"

        return types.SimpleNamespace(async_move_resource_to_block_cache=take)

    components = [component("one"), component("two")]
    take_only_uploads(types.SimpleNamespace(blocks=dict(enumerate(components))))
    for one, name in zip(components, ("one", "two"), strict=True):
        assert asyncio.run(one.async_move_resource_to_block_cache(Path("a.mp4"))) == f"{name} a.mp4"
        with pytest.raises(gr.Error):
            asyncio.run(one.async_move_resource_to_block_cache("ftp://x/a.mp4"))


@pytest.mark.parametrize("name", [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)])
def test_a_signal_removes_what_visitors_sent(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    seen = []

    def launch(frame, host, port, allow_hosts):
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
        (folder / "clip.mp4").write_bytes(b"1")
        seen.extend([folder, host, port, allow_hosts])
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(5)

    monkeypatch.setattr(app, "launch", launch)
    before = signal.getsignal(getattr(signal, name))
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--port", "1", "--allow-host", "a.example", "--allow-host", "b.example"])
    assert ended.value.code == 128 + getattr(signal, name)
    assert seen[1:] == ["127.0.0.1", 1, ["a.example", "b.example"]] and not seen[0].exists()
    assert signal.getsignal(getattr(signal, name)) == before and "GRADIO_TEMP_DIR" not in os.environ


@pytest.mark.parametrize("given", ("made/by/gradio", ""))
def test_the_operators_folder_is_made_and_none_is_none(monkeypatch, tmp_path, given):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "usual"))
    (tmp_path / "usual").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADIO_TEMP_DIR", given and str(tmp_path / given))
    with demo_commands._folder_of_its_own():
        assert Path(os.environ["GRADIO_TEMP_DIR"]).parent == tmp_path / (given or "usual")
    assert os.environ["GRADIO_TEMP_DIR"] == (given and str(tmp_path / given))


def test_the_operators_folder_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "theirs").touch()
    seen = []
    monkeypatch.setattr(app, "launch", lambda *_, **__: seen.append(Path(os.environ["GRADIO_TEMP_DIR"])))
    arguments = argparse.Namespace(
        model=[], allow_models=False, device="cpu", dtype=None, host="", port=1, allow_host=[]
    )
    demo_commands.run_demo(arguments)
    assert seen[0].parent == tmp_path and os.environ["GRADIO_TEMP_DIR"] == str(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["theirs"]
