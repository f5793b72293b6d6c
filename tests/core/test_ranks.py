"""Measurements whose runs 2 and 4 gloo processes share, as `accelerate launch` starts them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmaccel.cli import main as cli
from mmaccel.comparison import results
from mmaccel.comparison.ranks import Ranks
from mmaccel.errors import WeightsError
from mmaccel.modality import get_modality

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no forks")
SHARED = pytest.mark.parametrize("world", (2, 4))
SCRIPT = Path(__file__).parents[1] / "helpers/shared_runs.py"  # which registers a modality, and so is not imported


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(SCRIPT), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def told(folder, world, command):
    """Exit code and text of each process."""
    return [json.loads((folder / str(world) / f"{rank}.json").read_text())[command] for rank in range(world)]


def rows(folder, world, name="compare"):
    return json.loads((folder / str(world) / f"{name}.json").read_text())


def same_in_any_number(row):
    """What does not depend on how many processes measured it."""
    keys = ("label", "seeds", "quality", "quality_worst", "worst_seed", "metrics_by_seed", "equal", "work_ratio")
    return {key: row[key] for key in keys}


@SHARED
@pytest.mark.parametrize("name", ("compare", "rounds"))
def test_the_rows_are_those_of_one_process(folder, world, name):
    alone, shared = rows(folder, 1, name), rows(folder, world, name)
    assert [same_in_any_number(row) for row in shared["rows"]] == [same_in_any_number(row) for row in alone["rows"]]
    for one, other in zip(alone["rows"], shared["rows"], strict=True):
        assert [each["seed"] for each in other["samples"]] == [each["seed"] for each in one["samples"]]
    assert shared["header"]["processes"] == world and "processes" not in alone["header"]


@SHARED
def test_the_first_process_alone_prints_and_writes(folder, world):
    for command in ("compare", "tune", "bench", "again"):
        (code, first), *others = told(folder, world, command)
        assert code == 0 and first and others == [[0, ""]] * (world - 1)
    assert f"{world} processes shared the runs" in told(folder, world, "compare")[0][1]
    plan = json.loads((folder / str(world) / "plan.json").read_text())
    assert plan["methods"][0]["name"] == "toy.Stride"


@SHARED
def test_parts_of_a_benchmark_are_dealt_out(folder, world):
    said = told(folder, world, "bench")[0][1]
    found = json.loads(said[said.index("{") :])
    assert [row["settings"]["stride"] for row in found["rows"]] == [1, 2, 3, 4, 5]
    assert [int(row["label"]) for row in found["rows"]] == [number % world for number in range(5)]
    assert not results.faults(found) and not (folder / str(world) / "bench.unfinished.json").exists()


@SHARED
def test_one_line_says_what_was_wrong_and_the_next_command_works(folder, world):
    (code, first), *others = told(folder, world, "few")
    assert (code, others) == (2, [[2, ""]] * (world - 1))
    assert (
        first
        == f"mmaccel: {world} processes have only 1 run to share: ask for more --seeds or --rounds, or start fewer\n"
    )
    (code, first), failed, *others = told(folder, world, "fails")
    assert code == 2 and failed == ["stumbled", ""] and others == [[2, ""]] * (world - 2)
    assert first.endswith(f"mmaccel: process 1 of {world} failed: ValueError: stumbled\n")


@SHARED
def test_a_model_that_is_split_over_the_processes_is_refused(folder, world):
    for _, said in told(folder, world, "split"):
        assert said.startswith("Walker is split over the processes") and "leave out ranks=True" in said


def test_an_exchange_waits_for_what_takes_longer_than_the_group_would(folder):
    """As NCCL's own patience of ten minutes ends a launch whose last clip takes eleven."""
    assert [said for _, said in told(folder, 2, "slow")] == [[0, 1]] * 2


def test_what_another_process_has_on_its_gpu_comes_to_that_of_this_one(monkeypatch):
    places = []

    def gather(found, one, group):
        found[:] = [one] * len(found)

    def restore(storage, place):
        places.append(place)
        return storage

    monkeypatch.setattr("torch.serialization.location_tag", lambda storage: "cuda:3")
    monkeypatch.setattr("torch.serialization.default_restore_location", restore)
    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    monkeypatch.setattr("mmaccel.comparison.ranks._group", lambda world: None)
    found = Ranks(0, 2)._exchanged(({"worst": torch.ones(2)}, None))[-1]
    assert torch.equal(found[0]["worst"], torch.ones(2)) and set(places) == {"cuda"}


@pytest.mark.parametrize(
    "words",
    (
        ["compare", "video", "a fox"],
        ["compare", "speech", "talk.wav"],
        ["tune", "video", "a fox", "--method", "video.EasyCache", "--floor", "30"],
    ),
    ids=" ".join,
)
def test_processes_are_connected_before_the_model_is_loaded(words, monkeypatch):
    """That gives each of them a GPU of its own, on which "cuda" then loads the model."""
    done = []

    def opened(*_):
        done.append("opened")
        raise WeightsError("enough")

    monkeypatch.setattr(Ranks, "launched", lambda: done.append("connected") or Ranks())
    monkeypatch.setattr(type(get_modality(words[1])), "open", opened)
    assert cli.main(words) == 2 and done == ["connected", "opened"]


def test_without_a_launch_nothing_is_shared():
    alone = Ranks.launched()
    assert alone == Ranks(0, 1) and alone.mine([1, 2]) == [1, 2] and alone.of_first(lambda: 3) == 3


def test_a_torch_without_processes_shares_nothing(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_available", lambda: False)
    monkeypatch.delattr("torch.distributed.is_initialized")
    assert Ranks.launched() == Ranks()
