"""One clip by several processes that share the tokens of tiny-wan: ``python ranks.py WORLD PORT FOLDER``."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing
from diffusers import ContextParallelConfig
from diffusers.hooks.context_parallel import apply_context_parallel
from diffusers.models._modeling_parallel import ParallelConfig
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh

import mmaccel
from mmaccel import video, zoo
from mmaccel.errors import MmaccelError

PROMPT = "rocket moves up, blue background"
CALL = {"prompt": PROMPT, "num_inference_steps": 12, "num_frames": 5, "output_type": "latent"}
WORKING = {
    "steps": video.HeterogeneousSteps(budget=0.5),
    "easy": video.EasyCache(threshold=0.2, warmup=3),
    "taylor": video.TaylorSeer(interval=3, warmup=2),
    "broadcast": video.PyramidAttentionBroadcast(timesteps=(0, 1000), cross=2),
    "faster": video.FasterCache(timesteps=(-1, 1000)),
}
REFUSED = {
    "mag": video.MagCache(ratios=(1.0, 1.0), warmup=1),
    "tea": video.TeaCache(),
    "first": video.FirstBlockCache(),
    "blocks": video.BlockCache(),
    "tokens": video.TokenCache(),
    "sparse": video.SparseAttention(),
    "partial": video.HeterogeneousSteps(fraction=0.3),
    "auto": video.Auto(),
}


def split(transformer, rank, world):
    """What `enable_parallelism` does, which asks for a GPU."""
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("ring", "ulysses"))
    config = ContextParallelConfig(ulysses_degree=world)
    parallel = ParallelConfig(context_parallel_config=config)
    parallel.setup(rank, world, torch.device("cpu"), mesh=mesh)
    for part in (transformer, *(getattr(module, "processor", None) for module in transformer.modules())):
        if hasattr(part, "_parallel_config"):
            part._parallel_config = parallel
    apply_context_parallel(transformer, config, transformer._cp_plan)


def drawn(pipe, method=None):
    generator = torch.Generator().manual_seed(0)
    if method is None:
        return pipe(**CALL, generator=generator).frames, []
    with mmaccel.accelerate(pipe, method) as fast:
        return fast(**CALL, generator=generator).frames, fast.report.details.get("computed", [])


def refusal(pipe, method):
    try:
        mmaccel.plan(pipe, method)
    except MmaccelError as error:
        return str(error)
    return ""


def run(rank, world, port, folder):
    torch.set_num_threads(1)
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    if world > 1:
        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
        split(pipe.transformer, rank, world)
    found = {name: drawn(pipe, method) for name, method in {"plain": None, **WORKING}.items()}
    # thresholds by which each process would decide for itself
    found["apart"] = drawn(pipe, video.EasyCache(threshold=0.2 if rank == 0 else 1e-9, warmup=3))
    told = {
        "computed": {name: computed for name, (_, computed) in found.items()},
        "refused": {name: refusal(pipe, method) for name, method in REFUSED.items()},
    }
    save_file({name: latents.contiguous() for name, (latents, _) in found.items()}, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(told))
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    world, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.multiprocessing.spawn(run, (world, port, folder), nprocs=world)
