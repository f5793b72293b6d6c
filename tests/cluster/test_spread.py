"""Items over the processes of a Ray cluster of this machine: one that ends loses nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_batch import EchoCommand, usual

from mmaccel.batch import run
from mmaccel.batch.folder import OutputFolder
from mmaccel.batch.items import Item
from mmaccel.batch.work import Made, Task
from mmaccel.cli import main as cli
from mmaccel.cluster import connection
from mmaccel.cluster.spread import Crew, spread
from mmaccel.errors import MissingExtraError, SettingError

COMMAND, HELPERS = EchoCommand(), Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="module")
def cluster():
    """Two cores of this machine; the tests connect to it and leave it."""
    ray = pytest.importorskip("ray", reason='needs ray: pip install "mmaccel[ray]"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HELPERS))
        patch.setattr(connection, "OBJECTS", 80 * 2**20)
        patch.setattr(ray, "shutdown", lambda: None)
        with connection.connected("local"):
            patch.setattr(ray, "init", lambda **_: None)
            yield ray
        patch.undo()
        ray.shutdown()


@pytest.mark.parametrize("words", (["serve", "image"], ["batch", "image", "INPUT", "-o", "OUTPUT"]))
def test_a_gpu_by_number_is_left_to_ray(words, tmp_path, capsys, monkeypatch):
    """Before Ray is asked for anything."""
    (tmp_path / "x.jsonl").write_text('{"prompt": "red heart"}\n')
    places = {"INPUT": str(tmp_path / "x.jsonl"), "OUTPUT": str(tmp_path / "made")}
    monkeypatch.setattr("mmaccel.cluster.replicas.connected", lambda _: pytest.fail("asked Ray"))
    monkeypatch.setattr("mmaccel.cluster.spread.module", lambda: None)
    monkeypatch.setattr("mmaccel.cluster.spread.connected", lambda _: pytest.fail("asked Ray"))
    assert cli.main([*(places.get(word, word) for word in words), "--ray", "--device", "cuda:1"]) == 2
    assert "--device cuda:1: Ray chooses the GPU of each process: say --device cuda" in capsys.readouterr().err
    assert connection.needs_of("cuda:0") == connection.needs_of("cuda") == {"num_cpus": 1, "num_gpus": 1}


def made(path, texts, **changed):
    found = [Item(f"{number:03}", {"text": text}) for number, text in enumerate(texts)]
    given = usual(**changed)
    with OutputFolder(path, {}, ".txt") as folder:
        return run.run(found, folder, COMMAND, given, spread(COMMAND, given, path, "local", 2))


def test_outputs_are_those_of_one_process(cluster, tmp_path):
    outcome = made(tmp_path, ["a", "b", "bad", "c"], times=2)
    assert outcome.made == 3 and outcome.failures == {"002": "it is bad"}
    assert [file.read_text() for file in sorted(tmp_path.glob("*.txt"))] == ["aa", "bb", "cc"]


def test_an_item_that_ends_its_process_fails_alone(cluster, tmp_path):
    journal = tmp_path / "journal"
    outcome = made(tmp_path / "out", ["a", "dies", *"bcdef"], journal=str(journal))
    assert outcome.made == 6 and list(outcome.failures) == ["001"]
    assert "its process ended 3 times" in outcome.failures["001"]
    assert journal.read_text().count("dies") == 3


def test_a_process_that_is_killed_loses_nothing(cluster, tmp_path):
    journal, ended = tmp_path / "journal", []

    def kill():
        for most in (6, 12):
            while not journal.exists() or len(lines := journal.read_text().splitlines()) < most:
                time.sleep(0.01)
            ended.append(int(lines[-1].split()[1]))
            os.kill(ended[-1], signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    texts = [f"text-{number}" for number in range(40)]
    outcome = made(tmp_path / "out", texts, journal=str(journal), pause=0.05)
    killing.join()
    assert outcome.made == 40 and not outcome.failures
    assert sorted(file.read_text() for file in (tmp_path / "out").glob("*.txt")) == sorted(texts)
    keys = [json.loads(line)["key"] for line in (tmp_path / "out/.mmaccel/records.jsonl").read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 40
    assert len(set(ended)) == 2
    assert 40 <= len(journal.read_text().splitlines()) <= 42, "an item is begun again for each kill"


class NoMemory(Exception):
    """Ray ended a process to free memory."""


class Crowded:
    """Stands for Ray on a machine whose memory is short, so that the first calls end their process."""

    exceptions = SimpleNamespace(RayActorError=ZeroDivisionError, OutOfMemoryError=NoMemory)

    def __init__(self, ends):
        self.ends = ends

    def remote(self, **needs):
        ready, make = SimpleNamespace(remote=lambda: str), SimpleNamespace(remote=lambda task: partial(Made, task))
        return lambda worker: SimpleNamespace(remote=lambda: SimpleNamespace(ready=ready, make=make))

    def wait(self, calls):
        return calls[:1], calls[1:]

    def get(self, call):
        if isinstance(call, list):
            return [one() for one in call]
        self.ends -= 1
        if self.ends >= 0:
            raise NoMemory
        return call()

    def kill(self, worker):
        """Nothing."""


@pytest.mark.parametrize(("ends", "failed"), ((2, ""), (3, "its process ended 3 times")))
def test_an_item_outlives_processes_that_ray_ends_to_free_memory(ends, failed):
    tasks = [Task(Item(key, {}), Path("none")) for key in "ab"]
    one, other = Crew(Crowded(ends), {}, 1, ()).make(tasks)
    assert (one.task, other.task) == tuple(tasks)
    assert one.error.startswith(failed) and bool(one.error) == bool(failed) and not other.error


class Moved(Crowded):
    """Its first process ends, and the next one is where the folder of outputs is not seen."""

    def remote(self, **needs):
        return lambda kind: SimpleNamespace(remote=lambda *given: self.started(kind(*given)))

    def started(self, worker):
        make = SimpleNamespace(remote=lambda task: partial(worker.make, task))
        return SimpleNamespace(ready=SimpleNamespace(remote=lambda: str), make=make)


def test_a_process_that_replaces_another_and_cannot_work_says_why(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tasks = [Task(Item(key, {}), Path("none")) for key in "ab"]
    found = list(Crew(Moved(1), {}, 1, (COMMAND, usual(), tmp_path, "seen", str(tmp_path))).make(tasks))
    assert [each.task for each in found] == tasks
    assert all(f"does not see {tmp_path}: give a folder" in each.error for each in found)


def test_what_no_process_can_do_is_said_once(cluster, tmp_path):
    with pytest.raises(SettingError, match="there is no such model"):
        made(tmp_path, ["a"], model="none")
    given = usual()
    with pytest.raises(SettingError, match="too few for --workers 99: ask for"):
        next(spread(COMMAND, given, tmp_path, "local", 99)([object()]))
    with pytest.raises(SettingError, match="0 GPUs"):
        next(spread(COMMAND, usual(device="cuda"), tmp_path, "local", None)([object()]))


def test_a_cluster_that_is_not_there_is_said_in_a_line(tmp_path, capsys):
    pytest.importorskip("ray", reason='needs ray: pip install "mmaccel[ray]"')
    (tmp_path / "items.jsonl").write_text('{"prompt": "red heart"}\n')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address, said in ((f"127.0.0.1:{port}", "nobody answers there"), ("head", "give an address and a port")):
        words = ["batch", "image", str(tmp_path / "items.jsonl"), "-o", str(tmp_path / "out"), "--ray", address]
        assert cli.main(words) == 2
        error = capsys.readouterr().err
        assert said in error and len(error.strip().splitlines()) == 1


def test_without_ray_it_says_what_to_install_and_begins_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[ray\]"'), connection.connected("local"):
        pass
    (tmp_path / "items.jsonl").write_text('{"prompt": "red heart"}\n')
    assert cli.main(["batch", "image", str(tmp_path / "items.jsonl"), "-o", str(tmp_path / "out"), "--ray"]) == 2
    assert "--ray needs Ray" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_ray_without_what_its_server_needs_is_told_before_a_cluster_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=lambda **_: pytest.fail("started")))
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    with pytest.raises(MissingExtraError, match=r'needs Ray Serve: pip install "mmaccel\[ray\]"'):
        connection.serve_module()


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {helpers!r})
from toy_batch import EchoCommand, usual
from mmaccel.batch import run
from mmaccel.batch.folder import OutputFolder
from mmaccel.batch.items import Item
from mmaccel.cluster.spread import spread
command, out = EchoCommand(), Path(sys.argv[1])
given = usual(pause=0.1)
with OutputFolder(out, {{}}, ".txt") as folder:
    found = [Item(f"{{n:03}}", {{"text": f"text-{{n}}"}}) for n in range(30)]
    run.run(found, folder, command, given, spread(command, given, out, "local", 2))
"""


def test_a_driver_that_is_killed_goes_on_and_leaves_no_process(tmp_path):
    pytest.importorskip("ray", reason='needs ray: pip install "mmaccel[ray]"')
    out = tmp_path / "out"
    words = [sys.executable, "-c", DRIVER.format(helpers=str(HELPERS)), str(out)]
    given = {**os.environ, "PYTHONPATH": str(HELPERS)}
    with subprocess.Popen(words, env=given) as process:
        until = time.monotonic() + 60
        while len(list(out.glob("*.txt"))) < 5 and time.monotonic() < until:
            time.sleep(0.02)
        process.kill()
    there = len(list(out.glob("*.txt")))
    assert 5 <= there < 30
    assert subprocess.run(words, env=given, check=False).returncode == 0
    assert sorted(f.read_text() for f in out.glob("*.txt")) == sorted(f"text-{n}" for n in range(30))
    keys = [json.loads(line)["key"] for line in (out / ".mmaccel/records.jsonl").read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 30
