"""Pictures of what attention reads: blocks of keys, selected tokens, and tokens that a cache keeps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from PIL import Image

import mmaccel
from mmaccel import kernels, video, vlm, zoo
from mmaccel.demos.pages.figures import drawn, figure
from mmaccel.demos.pages.recorded_calls import Recorded, recorded
from mmaccel.vlm.bench.language_tasks import MODEL, load, text_task

LENGTH, NEW = 1024, 40  # tokens of the prompt, and decoding steps
PREFILL = ("a_shape", "vertical_slash", "pooled_top_k", "flex_prefill")
VIDEO = ("pooled_top_k", "sparge", "radial", "sliding_tile")
PROMPT = "rocket moves up, blue background"


def prefill() -> tuple[Image.Image, str]:
    """Blocks of keys that each block of queries of a prompt reads, by policy."""
    model, tokenizer = load()
    prompt, _ = text_task(tokenizer, LENGTH, 0)
    tables = {}
    for policy in PREFILL:
        method = vlm.SparsePrefill(policy, 0.25, always=True)
        with recorded(kernels, "block_sparse_attention") as calls, mmaccel.accelerate(model, method) as fast:
            fast.generate(prompt, max_new_tokens=2, do_sample=False)
        tables[policy] = _middle_blocks(calls).mask()[0, 0]
    return _tables(tables), (
        f"SparsePrefill with budget=0.25 and four policies on {MODEL}, one head of a middle layer: a row is a block of"
        " 64 queries of the prompt, a column a block of keys, and dark blocks are computed."
    )


def diffusion() -> tuple[Image.Image, str]:
    """The same between the tokens of a clip."""
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    tables = {}
    for policy in VIDEO:
        method = video.SparseAttention(policy, 0.3, min_length=1, always=True)
        with recorded(kernels, "block_sparse_attention") as calls, mmaccel.accelerate(pipe, method) as fast:
            fast(PROMPT, num_inference_steps=2, generator=torch.Generator().manual_seed(0), output_type="latent")
        tables[policy] = _middle_blocks(calls).mask()[0, 0]
    return _tables(tables), (
        "SparseAttention with budget=0.3 and four policies on tiny-wan, one head of a middle layer: a row is a block of"
        " queries, a column a block of keys, and dark blocks are computed."
    )


def select() -> tuple[Image.Image, str]:
    """Tokens that each decoding step reads."""
    model, tokenizer = load()
    prompt, _ = text_task(tokenizer, LENGTH, 0)
    method = vlm.SelectKV(budget=0.1)
    with recorded(kernels, "verify_attention") as calls, mmaccel.accelerate(model, method) as fast:
        fast.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    layers = model.config.num_hidden_layers
    read = [given[4] for given, _ in calls if len(given) > 4 and given[4] is not None]
    picture = _tokens(
        read[layers // 2 :: layers], LENGTH + NEW, f"token of a prompt of {LENGTH} and of the answer", "decoding step"
    )
    return picture, f"{method} on {MODEL}, one key head of a middle layer: dark tokens are read in that step."


def compress() -> tuple[Image.Image, str]:
    """Tokens that each layer keeps of a prompt."""
    model, tokenizer = load()
    prompt, _ = text_task(tokenizer, LENGTH, 0)
    method = vlm.CompressKV(budget=0.2)
    with recorded(vlm.CompressKV, "_choose") as calls, mmaccel.accelerate(model, method) as fast:
        fast.generate(prompt, max_new_tokens=2, do_sample=False)
    picture = _tokens([kept for _, kept in calls], LENGTH, f"token of a prompt of {LENGTH}", "layer")
    return picture, f"{method} on {MODEL}, the first key head of each layer: dark tokens stay in the cache."


JOBS: dict[str, Callable[[], tuple[Image.Image, str]]] = {
    "video.SparseAttention": diffusion,
    "vlm.CompressKV": compress,
    "vlm.SelectKV": select,
    "vlm.SparsePrefill": prefill,
}


def _middle_blocks(calls: list[Recorded]) -> kernels.BlockPlan:
    """The blocks that the middle one of all calls of block-sparse attention read."""
    given, _ = calls[len(calls) // 2]
    return given[3]


def _tokens(rows: list[torch.Tensor], count: int, across: str, down: str) -> Image.Image:
    """Which of `count` tokens are in each row, slots `[B, H, S]` with -1 for none; of the first head."""
    table = torch.zeros(len(rows), count)
    for row, slots in enumerate(rows):
        table[row, slots[0, 0][slots[0, 0] >= 0].long()] = 1
    made, axes = figure(1, 9, 3)
    axes.imshow(table, aspect="auto", cmap="Blues", interpolation="nearest")
    axes.set(xlabel=across, ylabel=down)
    return drawn(made)


def _tables(tables: dict[str, torch.Tensor]) -> Image.Image:
    made, panels = figure(len(tables), 9, 2.6)
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        axes.imshow(table, cmap="Blues", vmin=0, vmax=1.2, interpolation="nearest")
        axes.set_title(f"{name}, {table.float().mean():.0%}", fontsize=9)
        axes.set(xticks=[], yticks=[])
    return drawn(made)
