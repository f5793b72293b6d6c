"""Replicas behind a server: the answers are those of one model, and one that is killed loses no request."""

import base64
import io
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from listening import client, listening
from PIL import Image

from mmaccel.cli import main as cli
from mmaccel.cluster.replicas import replicated
from mmaccel.image.generation import ImageSettings
from mmaccel.modality import get_modality
from mmaccel.serve.app import ServerLimits

PROMPTS = ["red heart", "small pizza on green", "small red heart on blue", "big red heart on yellow"]


@pytest.fixture(scope="module")
def served():
    """Two replicas of a small model behind a server with a key."""
    pytest.importorskip("ray", reason='needs ray: pip install "mmaccel[ray]"')
    arguments = cli.build_parser().parse_args(["serve", "image"])
    del arguments.run
    limits = ServerLimits(waiting=8, batch=2, deadline=120)
    command = get_modality("image").command()
    with (
        replicated(command, arguments, limits, "local", 2, 2) as endpoint,
        listening(endpoint, limits, key="secret") as (server, address),
    ):
        yield server, address


@pytest.fixture(scope="module")
def wanted():
    painter = get_modality("image").open("tiny-janus")
    return [np.asarray(painter.paint(painter.target, [p], ImageSettings(seed=7)).pictures[0]) for p in PROMPTS]


def drawn(address, number):
    answer = client(address, "secret").images.generate(prompt=PROMPTS[number % 4], extra_body={"seed": 7})
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer.data[0].b64_json))))


def pids():
    """Processes of the replicas."""
    import psutil

    mine = psutil.Process().children(recursive=True)
    return [one.pid for one in mine if "Replica" in " ".join(one.cmdline())]


def test_answers_keys_and_refusals_are_those_of_one_model(served, wanted):
    server, address = served
    assert all(np.array_equal(drawn(address, number), wanted[number]) for number in range(4))
    asked = {"url": f"{address}/v1/images/generations", "timeout": 60}
    key = {"Authorization": "Bearer secret"}
    assert httpx.post(json={"prompt": "red heart"}, **asked).status_code == 401
    refused = httpx.post(json={"prompt": "zeppelin"}, headers=key, **asked)
    assert refused.status_code == 400 and "zeppelin" in refused.json()["error"]["message"]
    assert httpx.post(json={"prompt": "red heart", "model": "x"}, headers=key, **asked).status_code == 404
    figures = httpx.get(f"{address}/metrics", headers=key).text
    told = dict(line.split() for line in figures.splitlines() if line.startswith("mmaccel_p"))
    assert 0 < float(told["mmaccel_passes_total"]) < float(told["mmaccel_plain_passes_total"]) >= 4 * 256


def test_too_many_are_refused_at_once_and_who_leaves_frees_a_place(served):
    server, address = served
    key = {"Authorization": "Bearer secret"}

    def ask(number):
        body = {"prompt": PROMPTS[number % 4], "n": 4, "seed": number}
        try:
            return httpx.post(f"{address}/v1/images/generations", json=body, headers=key, timeout=0.7).status_code
        except httpx.ReadTimeout:
            return None

    with ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(ask, range(40)))
    assert statuses.count(503) and statuses.count(None) and set(statuses) <= {200, 503, None}
    until = time.monotonic() + 60
    while server.worker.tasks and time.monotonic() < until:
        time.sleep(0.05)
    assert not server.worker.tasks, "clients that left leave nothing behind"


def test_a_replica_that_is_killed_loses_no_request(served, wanted):
    server, address = served
    (one, *_), killed = pids(), []

    def kill():
        time.sleep(1.0)
        os.kill(one, signal.SIGKILL)
        killed.append(one)

    killing = threading.Thread(target=kill)
    killing.start()
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda number: drawn(address, number), range(24)))
    killing.join()
    assert killed and one not in pids()
    assert all(np.array_equal(picture, wanted[number % 4]) for number, picture in enumerate(got))


def test_a_model_that_cannot_be_served_is_said_in_a_line(capsys):
    pytest.importorskip("ray", reason='needs ray: pip install "mmaccel[ray]"')
    assert cli.main(["serve", "image", "--replicas", "2"]) == 2
    assert "--replicas is for --ray" in capsys.readouterr().err
    assert cli.main(["serve", "image", "--ray", "--replicas", "4-2"]) == 2
    assert "--replicas 4-2" in capsys.readouterr().err
