"""Attention in `mmaccel bench kernels`: sparse, in a window, and of a few queries over a long cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .. import BlockPlan, block_sparse_attention, should_use_sparse, verify_attention
from .case import Draw, KernelCase, Run, one_head_error, shape_of

LAYERS = 8
BLOCK = 64


def sparse_case(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, density: float, causal: bool) -> KernelCase:
    """Random blocks, as many in every row, against dense attention; all of them above the break-even density."""
    length, blocks = q.shape[2], q.shape[2] // BLOCK
    order = Draw(q.dtype, str(q.device)).order(1, q.shape[1], blocks, blocks)
    mask = order < round(density * blocks)
    mask |= torch.eye(blocks, dtype=torch.bool, device=q.device)  # no query without a key
    plan = BlockPlan.from_mask(mask, q_len=length, kv_len=length, causal=causal)
    heads, width = q.shape[1], q.shape[3]
    pays = should_use_sparse(plan.visible_share(causal), length, q.device, causal, q.dtype)

    def error() -> float:
        output, _ = block_sparse_attention(q, k, v, plan, causal=causal)
        visible = plan.mask()[0, 0].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return one_head_error(output, q, k, v, visible.tril() if causal else visible)

    return KernelCase(
        "block_sparse_attention",
        shape_of(q, k),
        q.dtype,
        {"density": density, "causal": causal, "cutover": True},
        "dense scaled_dot_product_attention",
        lambda: block_sparse_attention(q, k, v, plan if pays else None, causal=causal),
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        error,
        flops=4.0 * plan.col.numel() * BLOCK * BLOCK * width,
        bytes=float((4 * heads * length * width) * q.element_size()),
    )


def window_case(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> KernelCase:
    """A sliding causal window, against attention with a mask."""
    place = torch.arange(q.shape[2], device=q.device)
    distance = place[:, None] - place
    mask = (distance >= 0) & (distance < window)
    return KernelCase(
        "block_sparse_attention",
        shape_of(q, k),
        q.dtype,
        {"window": window, "causal": True},
        "masked scaled_dot_product_attention",
        lambda: block_sparse_attention(q, k, v, causal=True, window=window),
        lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        lambda: one_head_error(block_sparse_attention(q, k, v, causal=True, window=window)[0], q, k, v, mask),
        flops=4.0 * q.shape[1] * q.shape[2] * window * q.shape[3],
    )


def decode_cases(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, draw: Draw) -> Iterator[KernelCase]:
    """One query over a long cache, whole and selected, and a window of drafts; then one query in each of many layers.

    In a model the caches of the other layers come between two calls for one, so that keys and values are read from
    memory, while the code stays at hand; a single call between two dense ones finds neither.
    """
    length = k.shape[2]
    caches = [(k, v), *((draw(*k.shape), draw(*v.shape)) for _ in range(LAYERS - 1))]
    lengths = torch.tensor([length], device=q.device)
    chosen = (draw.order(1, k.shape[1], length) < 1024).nonzero()[:, 2].view(1, k.shape[1], 1024).int()
    drafts = draw(1, q.shape[1], 16, q.shape[3])
    only = torch.zeros(length, dtype=torch.bool, device=q.device)
    only[chosen[0, 0].long()] = True
    seen = torch.ones(16, length, dtype=torch.bool, device=q.device).tril(length - 16)
    variants: tuple[tuple[torch.Tensor, Any, Any, dict[str, Any]], ...] = (
        (q, None, None, {"tokens": length}),
        (q, chosen, only[None], {"tokens": 1024}),
        (q, None, None, {"tokens": length, "layers": LAYERS}),
        (q, chosen, only[None], {"tokens": 1024, "layers": LAYERS}),
        (drafts, None, seen, {"tokens": length, "drafts": 16}),
    )
    for query, tokens, mask, settings in variants:
        whole, layers = seen if query is drafts else None, caches[: settings.get("layers", 1)]

        def run(query: torch.Tensor = query, tokens: Any = tokens, layers: Any = layers) -> Any:
            return [verify_attention(query, key, value, lengths, tokens) for key, value in layers][0]

        def error(run: Run = run, query: torch.Tensor = query, mask: Any = mask) -> float:
            return one_head_error(run()[0], query, k, v, mask)

        def dense(query: torch.Tensor = query, whole: Any = whole, layers: Any = layers) -> torch.Tensor:
            return [_by_groups(query, key, value, whole) for key, value in layers][0]

        def by_heads(query: torch.Tensor = query, whole: Any = whole, layers: Any = layers) -> torch.Tensor:
            options = {"attn_mask": whole, "enable_gqa": True}
            return [F.scaled_dot_product_attention(query, key, value, **options) for key, value in layers][0]

        read = 2 * len(layers) * k.shape[1] * settings["tokens"] * k.shape[3] * k.element_size()
        yield KernelCase(
            "verify_attention",
            shape_of(query, k),
            q.dtype,
            settings,
            "scaled_dot_product_attention by groups of heads, over all tokens",
            run,
            dense,
            error,
            bytes=float(read),
            others={"enable_gqa": by_heads},
        )


def _by_groups(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Torch's attention with the query heads of a key head as rows of one head, so that keys are read once for all.

    Its own `enable_gqa=True` reads them for each query head.
    """
    groups = query.shape[1] // key.shape[1]
    rows = query.reshape(len(query), key.shape[1], -1, query.shape[3])
    mask = None if mask is None else mask.repeat(groups, 1)
    return F.scaled_dot_product_attention(rows, key, value, attn_mask=mask).view_as(query)
