"""Commands by 1, 2 and 4 processes that share the runs, as a launcher starts them: ``python shared_runs.py FOLDER``."""

import contextlib
import dataclasses
import functools
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import accelerate  # noqa: F401  # once for all processes, which are forks of this one
import torch
import torch.distributed
import toy_modality
from forked import WORLDS, fork
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import mmaccel
from mmaccel import modality
from mmaccel.cli.main import main
from mmaccel.comparison.ranks import Ranks
from mmaccel.comparison.results import row
from mmaccel.errors import MmaccelError

FAILS = 13.0  # where a walk that starts here fails in the second process
COMMANDS = {
    "compare": "compare toy 1 --seeds 4 --method toy.Stride --method toy.Stride:stride=4 -o {}/compare.json",
    "rounds": "compare toy 1 --seeds 1 --rounds 4 -o {}/rounds.json",
    "tune": "tune toy 1 --method toy.Stride --setting stride=2,4 --floor 9 --seeds 4 -o {}/plan.json",
    "few": "compare toy 1 --seeds 1 --rounds 1",
    "fails": "compare toy 13 --seeds 4",
    "bench": "bench toy --json --page {}/bench.md",
    "again": "compare toy 1 --seeds 4 --rounds 1",
}


class Trial(toy_modality.ToyTrial):
    """A walk from another place with each seed."""

    def run(self, target, seed, fewer=None):
        place = self.inputs["place"]
        if float(place[0, 0]) == FAILS and os.environ["RANK"] == "1":
            raise ValueError("stumbled")
        return target.generate(place * (seed + 1))


def parts(full):
    """Three, each of a row that names the process that made it."""

    def rows(number):
        made = row(modality="toy", model="tiny-toy", method="toy.Stride", settings={"stride": number}, exact=False)
        return [{**made, "label": os.environ["RANK"]}]

    return {str(number): functools.partial(rows, number) for number in range(1, 6)}


def refusal():
    """What is said of a model whose weights lie in several processes."""
    model = toy_modality.Toy().open("tiny-toy")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model.step.weight = torch.nn.Parameter(distribute_tensor(model.step.weight.data, mesh, [Replicate()]))
    try:
        mmaccel.compare(model, toy_modality.Stride(), place=torch.ones(1, 4), ranks=True)
    except MmaccelError as error:
        return str(error)
    return ""


def patience(rank, world, folder):
    """What processes exchange of which one works for longer than their group waits."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    address = f"file://{folder / 'again'}"
    given = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=4)}
    torch.distributed.init_process_group("gloo", address, **given)
    return Ranks.launched().gathered(lambda: time.sleep(6 * rank) or rank)


def work(rank, world, port, folder):
    """All commands in one process of so many, and what each said."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    told = {}
    for name, command in COMMANDS.items():
        said = folder / f"{name}{rank}.txt"
        with said.open("w") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            try:
                code = main(command.format(folder).split())
            except ValueError as error:
                code = str(error)
        told[name] = [code, said.read_text()]
    if world > 1:
        told["split"] = [2, refusal()]
        told["slow"] = [0, patience(rank, world, folder)] if world == 2 else None
        torch.distributed.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    installed = modality._installed()
    modality._installed = lambda: (*installed, toy_modality.Toy)
    toy_modality.ToyCommand.seeded = True
    toy_modality.Toy.trial = lambda self: Trial
    toy_modality.BENCHMARK = dataclasses.replace(toy_modality.BENCHMARK, parts=parts)
    sys.exit(not all(fork(work, world, Path(sys.argv[1]) / str(world)) for world in WORLDS))
