"""Draw clips in processes that share their tokens, plainly and faster, and write down how much of the gain stays.

    python -m mmaccel.demos.video.context_parallel --output docs/benchmarks/long/context_parallel

`tiny-wan` under the context parallelism of diffusers, in 1, 2 and 4 processes of this machine, of one thread each. In
every process count plain runs and each method take turns; beside the time is how far the clip is from that of one
process. Where there are fewer cores than processes these wait for each other, plainly and with a method alike.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from diffusers import ContextParallelConfig
from diffusers.hooks.context_parallel import apply_context_parallel
from diffusers.models._modeling_parallel import ParallelConfig
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn
from tqdm import tqdm

import mmaccel
from mmaccel import video, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.comparison.trial import counted

MODEL = "tiny-wan"
WORLDS = (1, 2, 4)
CALL = {"prompt": "rocket moves up, blue background", "num_inference_steps": 40, "output_type": "latent"}
WAYS: dict[str, tuple[Any, ...]] = {
    "plain": (),
    "HeterogeneousSteps()": (video.HeterogeneousSteps(),),
    "HeterogeneousSteps(budget=0.25)": (video.HeterogeneousSteps(budget=0.25),),
    "EasyCache()": (video.EasyCache(),),
}
HEADINGS = ("processes", "way", "seconds a clip", "speed-up", "saved of the time", "of that in one process", "passes")


def split(transformer: Any, rank: int, world: int) -> None:
    """What `enable_parallelism` of diffusers does, which asks for a GPU."""
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("ring", "ulysses"))
    config = ContextParallelConfig(ulysses_degree=world)
    parallel = ParallelConfig(context_parallel_config=config)
    parallel.setup(rank, world, torch.device("cpu"), mesh=mesh)
    for part in (transformer, *(getattr(module, "processor", None) for module in transformer.modules())):
        if hasattr(part, "_parallel_config"):
            part._parallel_config = parallel
    apply_context_parallel(transformer, config, transformer._cp_plan)


def work(rank: int, world: int, port: int, rounds: int, folder: Path) -> None:
    """The part of one process; the first one writes what all took."""
    torch.set_num_threads(1)
    pipe = zoo.load(MODEL)
    pipe.set_progress_bar_config(disable=True)
    if world > 1:
        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
        split(pipe.transformer, rank, world)
    clips, rows = {}, []
    for turn in range(rounds + 1):  # the first one warms up
        for way, methods in WAYS.items():
            clips[way], row = drawn(pipe, methods)
            rows += [{"processes": world, "way": way, **row}] if turn else []
    if rank == 0:
        save_file({way: clip.contiguous() for way, clip in clips.items()}, folder / f"{world}.safetensors")
        (folder / f"{world}.json").write_text(json.dumps(rows))
    if world > 1:
        torch.distributed.destroy_process_group()


def drawn(pipe: Any, methods: tuple[Any, ...]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Latents, and the seconds and computed passes of the run that drew them."""
    generator = torch.Generator().manual_seed(0)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    began = time.perf_counter()
    if not methods:
        with counted(pipe.transformer) as passes:
            latents = pipe(**CALL, generator=generator).frames
        return latents, {"seconds": time.perf_counter() - began, "passes": len(passes)}
    with mmaccel.accelerate(pipe, *methods) as fast:
        latents = fast(**CALL, generator=generator).frames
        computed = sum(done > 0 for done in fast.report.details["computed"])
    return latents, {"seconds": time.perf_counter() - began, "passes": computed}


def measured(rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each run, with the largest difference of its clip to that of one process."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for world in tqdm(WORLDS, unit="count of processes"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            spawn(work, (world, port, rounds, folder), nprocs=world)
            alone, clips = (load_file(folder / f"{count}.safetensors") for count in (1, world))
            for row in json.loads((folder / f"{world}.json").read_text()):
                yield {**row, "difference": (clips[row["way"]] - alone[row["way"]]).abs().max().item()}


def page(result: dict[str, Any]) -> str:
    """The page of a result."""
    rows = result["rows"]
    furthest = max(row["difference"] for row in rows)
    near = f"No clip was further than {furthest:.1e} from that of" if furthest else "Each clip was bit for bit that of"
    intro = (
        f"`{MODEL}`, {CALL['num_inference_steps']} steps, in processes that share the tokens of a clip by the context"
        " parallelism of diffusers, one thread each, by `python -m mmaccel.demos.video.context_parallel`. Medians of"
        f" {len(rows) // len(WORLDS) // len(WAYS)} runs by turns. {near} one process, and the same steps were computed"
        " in any number, of two passes each for guidance. *Saved* is the part of the plain run's time that a method"
        " leaves out; so small a model on so few cores gains little or nothing by the sharing itself."
    )
    return pages.page(result, "Methods and shared tokens", intro, {"What stays of the gain": table(rows)})


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each number of processes and way."""
    return pages.markdown(HEADINGS, [_line(rows, world, way) for world in WORLDS for way in WAYS])


def _line(rows: list[dict[str, Any]], world: int, way: str) -> tuple[str, ...]:
    found = [row for row in rows if (row["processes"], row["way"]) == (world, way)]
    seconds = results.median(row["seconds"] for row in found)
    passes = " or ".join(str(count) for count in sorted({row["passes"] for row in found}))
    if way == "plain":
        return str(world), way, f"{seconds:.2f}", "1.00x", "", "", passes
    saved, alone = _saved(rows, world, way), _saved(rows, 1, way)
    return str(world), way, f"{seconds:.2f}", f"{1 / (1 - saved):.2f}x", f"{saved:.0%}", f"{saved / alone:.0%}", passes


def _saved(rows: list[dict[str, Any]], world: int, way: str) -> float:
    """Share of the plain time that a way leaves out, the median over the turns."""
    plain, fast = (
        [row["seconds"] for row in rows if (row["processes"], row["way"]) == (world, name)] for name in ("plain", way)
    )
    return float(results.median(1 - mine / theirs for mine, theirs in zip(fast, plain, strict=True)))


def measure(rounds: int) -> dict[str, Any]:
    """Every count of processes."""
    return results.result(measured(rounds))


if __name__ == "__main__":
    pages.run(__doc__, page, measure, threads=False, rounds={"type": int, "default": 5})
