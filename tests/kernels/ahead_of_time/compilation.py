"""Every kernel compiles for GPUs that are not there: without a stack, within shared memory, on tensor cores."""

import importlib
import itertools
import os

import pytest

from mmaccel.kernels.gpu import tiles
from mmaccel.kernels.gpu.launch import power_of_two

FULL = os.environ.get("MMACCEL_FULL") == "1"
SHARED_KIB = {80: 163, 86: 99, 90: 227, 100: 227, 120: 99}
SIZE = {"fp16": 2, "bf16": 2, "fp32": 4}

PREFILL = ("range", "plan")
DECODE = ("all", "tree", "selected")
# without MMACCEL_FULL=1: Hopper's ranges complete, and each architecture, dtype, width and mode with some other
PREFILL_SOME = [(90, dtype, width, "range") for dtype in SIZE for width in (64, 96, 128)] + [
    (90, "bf16", 64, "plan"), (90, "fp16", 128, "plan"), (90, "fp32", 96, "plan"),
    (80, "bf16", 64, "range"), (80, "fp16", 128, "plan"), (80, "bf16", 96, "range"), (80, "fp32", 128, "range"),
    (100, "bf16", 128, "range"), (100, "fp16", 64, "plan"), (100, "fp16", 96, "plan"), (100, "fp32", 64, "range"),
    (86, "bf16", 512, "plan"),
]  # fmt: skip
DECODE_SOME = [
    (90, "bf16", 128, "all"), (90, "fp16", 64, "tree"), (90, "fp32", 96, "selected"),
    (80, "fp16", 96, "all"), (80, "fp32", 128, "tree"), (80, "bf16", 64, "selected"),
    (100, "fp32", 64, "all"), (100, "bf16", 96, "tree"), (100, "fp16", 128, "selected"),
]  # fmt: skip


def matrix(some, modes):
    if not FULL:
        return some
    beside = itertools.product((80, 90, 100), ("bf16",), (16, 256), modes)
    small = itertools.product((86, 120), ("bf16",), (64, 128, 512), modes)
    return [*itertools.product((80, 90, 100), SIZE, (64, 96, 128), modes), *beside, *small]


def fits(artefact, arch):
    assert artefact.size > 0 and ".entry" in artefact.ptx
    assert artefact.stack == 0, f"{artefact.stack} bytes of stack, {artefact.registers} registers"
    assert artefact.shared <= SHARED_KIB[arch] * 1024


@pytest.mark.parametrize(("arch", "dtype", "width", "mode"), matrix(PREFILL_SOME, PREFILL))
def test_block_sparse_attention(compile_kernel, arch, dtype, width, mode):
    from mmaccel.kernels.gpu.block_sparse_attention import attend_kernel

    tile = tiles.attention_tile(arch, width, SIZE[dtype])
    types = {"lse": "*fp32", "scale": "fp32", **dict.fromkeys(("q", "k", "v", "output"), f"*{dtype}")}
    constants = {"WIDTH": width, "BLOCK_D": power_of_two(width), "PLAN_M": tile.block_m, "PLAN_N": tile.block_n}
    if mode == "plan":
        tile = tiles.cut(tile, 64, 64)
        constants |= {"PLAN_M": 64, "PLAN_N": 64}
        types |= dict.fromkeys(("row_ptr", "col", "n_full"), "*i32")
    else:
        constants |= dict.fromkeys(("row_ptr", "col", "n_full"))
    constants |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    artefact = compile_kernel(attend_kernel, arch, types, constants, tile.warps, tile.stages)
    fits(artefact, arch)
    if SIZE[dtype] == 2:
        instruction = {90: "wgmma", 100: "tcgen05.mma"}.get(arch, "mma.sync")
        assert instruction in artefact.ptx


@pytest.mark.parametrize(("arch", "dtype", "width", "mode"), matrix(DECODE_SOME, DECODE))
def test_verify_attention(compile_kernel, arch, dtype, width, mode):
    from mmaccel.kernels.gpu.verify_attention import verify_kernel

    tile = tiles.verify_tile(arch, width, SIZE[dtype], 64 if mode == "tree" else 1)
    types = {"lse": "*fp32", "scale": "fp32", "lengths": "*i32", "window_mask": "*u8", "token_idx": "*i32"}
    types |= {"output": "*fp32", **dict.fromkeys(("q", "k", "v"), f"*{dtype}")}
    constants = {"WIDTH": width, "BLOCK_D": power_of_two(width), "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    constants |= {} if mode == "tree" else {"window_mask": None}
    constants |= {} if mode == "selected" else {"token_idx": None}
    artefact = compile_kernel(verify_kernel, arch, types, constants, tile.warps, tile.stages)
    fits(artefact, arch)
    assert SIZE[dtype] == 4 or "mma" in artefact.ptx


def pointers(**groups):
    return {name: f"*{kind}" for kind, names in groups.items() for name in names.split()}


SMALL = {
    "merge_states.merge_kernel": (
        pointers(fp32="output lse merged_lse", bf16="merged"),
        {"BLOCK_R": 16, "BLOCK_D": 128},
    ),
    "segment_mean.segment_kernel": (
        pointers(bf16="x means", fp32="w", i64="perm ptr"),
        {"BLOCK_P": 8, "BLOCK_D": 128},
    ),
    "accept_length.accept_kernel": (pointers(fp32="p q u", i64="tok", i32="kept"), {"BLOCK_K": 16}),
    "residual_sample.race_kernel": (
        {"seed": "i64", **pointers(fp32="p q best", i32="n winner")},
        {"BLOCK": 1024},
    ),
    "residual_sample.final_kernel": (pointers(fp32="best", i32="winner", i64="token"), {"BLOCK": 256}),
}


@pytest.mark.parametrize("arch", (80, 90, 100))
@pytest.mark.parametrize("name", SMALL)
def test_small_kernels(compile_kernel, arch, name):
    module, kernel = name.split(".")
    types, constants = SMALL[name]
    artefact = compile_kernel(
        getattr(importlib.import_module(f"mmaccel.kernels.gpu.{module}"), kernel), arch, types, constants
    )
    fits(artefact, arch)
