"""One clip by 1, 2 and 4 processes that share the tokens of tiny-wan, and texts: ``python ranks.py FOLDER``."""

import json
import sys
from pathlib import Path

import eagle_heads
import torch
import torch.distributed
from forked import WORLDS, fork
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers.distributed import DistributedConfig

import mmaccel
from mmaccel import video, vlm, zoo
from mmaccel.demos.video.context_parallel import split
from mmaccel.errors import MmaccelError
from mmaccel.testing.untrained import untrained

PROMPT = "rocket moves up, blue background"
SIZE = {"num_frames": 5, "height": 32, "width": 32}
CALL = {"prompt": PROMPT, "num_inference_steps": 12, **SIZE, "output_type": "latent"}
WORKING = {
    "steps": video.HeterogeneousSteps(budget=0.5),
    "easy": video.EasyCache(threshold=0.5, warmup=3),
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
WHOLE = {"drop": vlm.PrefillDrop(), "stored": vlm.StoredContext(), "joined": vlm.JoinedContext()}  # on decoders
HEADS = {"head": True, "borrowing": False}  # with matrices of its own, and with the model's


def shallow():
    """tiny-wan with two of its six blocks: processes exchange as much in each."""
    pipe = zoo.load("tiny-wan")
    del pipe.transformer.blocks[2:]
    pipe.set_progress_bar_config(disable=True)
    return pipe


def drawn(pipe, method=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if method is None:
        return pipe(**CALL, generator=generator).frames, []
    with mmaccel.accelerate(pipe, method) as fast:
        return fast(**CALL, generator=generator).frames, fast.report.details.get("computed", [])


def sharded(pipe, world):
    """The pipeline with its transformer's weights sharded over the processes, block by block."""
    mesh = init_device_mesh("cpu", (world,))
    for part in (*pipe.transformer.blocks, pipe.transformer):
        fully_shard(part, mesh=mesh)
    return pipe


def refusal(pipe, method):
    try:
        mmaccel.plan(pipe, method)
    except MmaccelError as error:
        return str(error)
    return ""


def experts():
    """A small mixture of experts with sharp attention."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = MixtralConfig(vocab_size=64, **sizes, **heads, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return untrained(lambda: MixtralForCausalLM(config), scale=4)


def texts(model, folder):
    """What is written plainly and with drafts, how often the model ran, and what is said of drafts by measured cost."""
    ids = torch.randint(4, 60, (1, 24), generator=torch.Generator().manual_seed(1))
    ids = torch.cat([ids, ids[:, :12]], 1)
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False}
    found = [[model.generate(**call)[0].tolist(), 20]]
    heads = [vlm.EagleDraft(head=folder / name, always=True) for name in HEADS]
    for method in (vlm.SuffixDecoding(shortest=1), vlm.FusedDraft(always=True), *heads):
        with mmaccel.accelerate(model, method) as fast:
            found.append([fast.generate(**call)[0].tolist(), fast.report.forwards])
    try:
        mmaccel.accelerate(model, vlm.FusedDraft()).remove()
    except MmaccelError as error:
        return [*found, str(error)]
    return [*found, ""]


def run(rank, world, port, folder):
    model, pipe = LOADED["experts"], LOADED["wan"]
    if world > 1:
        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
        split(pipe.transformer, rank, world)
        parallel = DistributedConfig(tp_size=world, ep_size=world, tp_plan="auto")
        model = AutoModelForCausalLM.from_pretrained(folder.parent / "experts", distributed_config=parallel).eval()
    found = {name: drawn(pipe, method) for name, method in {"plain": None, **WORKING}.items()}
    # thresholds by which each process would decide for itself, the smallest in the last one
    is_last = rank == world - 1
    found["apart"] = drawn(pipe, video.EasyCache(threshold=0.2 if is_last else 0.5, warmup=3))
    tolerance = 0.0 if is_last else 1e9  # of forecasts, likewise
    found["astray"] = drawn(pipe, video.HeterogeneousSteps(budget=0.5, tolerance=tolerance))
    refused = {name: refusal(pipe, method) for name, method in REFUSED.items()}
    if world > 1:  # each draws something else, in steps that all of them compute or none
        pipe = sharded(LOADED["own"], world)
        refused["auto of weights"] = refusal(pipe, video.Auto())
        refused["first of weights"] = refusal(pipe, video.FirstBlockCache())
        found["weights"] = drawn(pipe, video.EasyCache(threshold=0.2 if is_last else 0.5, warmup=3), seed=rank)
    told = {
        "computed": {name: computed for name, (_, computed) in found.items()},
        "refused": refused,
        "texts": texts(model, folder.parent),
        "whole": {name: refusal(model, method) for name, method in WHOLE.items()},
    }
    save_file({name: latents.contiguous() for name, (latents, _) in found.items()}, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(told))
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    LOADED = {"experts": experts(), "wan": shallow(), "own": shallow()}
    LOADED["experts"].save_pretrained(Path(sys.argv[1]) / "experts")
    for name, own in HEADS.items():
        eagle_heads.write(Path(sys.argv[1]) / name, LOADED["experts"], reads=(0, 1, 2), own=own)
    sys.exit(not all(fork(run, world, Path(sys.argv[1]) / str(world)) for world in WORLDS))
