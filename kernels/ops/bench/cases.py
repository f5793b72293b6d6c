"""What `mmaccel bench kernels` times: every op at its shapes, torch's own way, and the error to float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from .. import (
    BlockPlan,
    accept_length,
    block_sparse_attention,
    kv_scatter_,
    merge_states,
    residual_sample,
    segment_mean,
    skinny_linear,
    verify_attention,
)

LAYERS = 8
DENSITIES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
BLOCK = 64
Run = Callable[[], Any]


@dataclass
class KernelCase:
    """One op at one shape.

    Attributes
    ----------
    run, baseline
        What is timed, ours and torch's own.
    error
        Largest error of `run` against float64, over 1 + the value.
    flops, bytes
        Arithmetic and memory traffic that the result needs, for the share of the machine's limit.
    """

    op: str
    shape: str
    dtype: torch.dtype
    settings: dict[str, Any]
    baseline_name: str
    run: Run
    baseline: Run
    error: Callable[[], float]
    flops: float = 0.0
    bytes: float = 0.0
    others: dict[str, Run] = field(default_factory=dict)


def cases(dtype: torch.dtype, device: str, lengths: tuple[int, ...]) -> Iterator[KernelCase]:
    """All cases of one type."""
    draw = Draw(dtype, device)
    for length in lengths:
        q, k, v = (draw(1, 8, length, 64) for _ in range(3))
        for causal in (False, True):
            for density in DENSITIES:
                yield sparse_case(q, k, v, density, causal)
        yield window_case(q, k, v, 256)
    yield from decode_cases(draw(1, 16, 1, 128), draw(1, 4, 16384, 128), draw(1, 4, 16384, 128), draw)
    yield from small_cases(draw)
    if dtype == torch.float32 and device == "cpu":
        yield from linear_cases(draw)


class Draw:
    """Random tensors of one type on one device, from one seed."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.dtype, self.generator = dtype, torch.Generator(device).manual_seed(0)

    def __call__(self, *shape: int) -> torch.Tensor:
        device = self.generator.device
        return torch.randn(*shape, generator=self.generator, device=device).to(self.dtype)

    def order(self, *shape: int) -> torch.Tensor:
        """Random ranks along the last axis."""
        return torch.rand(*shape, generator=self.generator, device=self.generator.device).argsort(-1).argsort(-1)


def _shape(q: torch.Tensor, k: torch.Tensor) -> str:
    return f"q {list(q.shape)}, k {list(k.shape)}"


def _one_head_error(output: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> float:
    """Of the first query head, against attention in float64 with a mask `[M, N]`."""
    query, key, value = (x[:1, :1].double() for x in (q, k, v))
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return _error(output[:1, :1], expected)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest error, relative to 1 + the expected size, since a float's rounding grows with it."""
    return float(((found.double() - expected).abs() / (1 + expected.abs())).max())


def sparse_case(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, density: float, causal: bool) -> KernelCase:
    """Random blocks, as many in every row, against dense attention; above the break-even density it cuts over."""
    length, blocks = q.shape[2], q.shape[2] // BLOCK
    order = Draw(q.dtype, str(q.device)).order(1, q.shape[1], blocks, blocks)
    mask = order < round(density * blocks)
    mask |= torch.eye(blocks, dtype=torch.bool, device=q.device)  # no query without a key
    plan = BlockPlan.from_mask(mask, q_len=length, kv_len=length, causal=causal)
    heads, width = q.shape[1], q.shape[3]

    def error() -> float:
        output, _ = block_sparse_attention(q, k, v, plan, causal=causal)
        visible = plan.mask()[0, 0].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return _one_head_error(output, q, k, v, visible.tril() if causal else visible)

    return KernelCase(
        "block_sparse_attention",
        _shape(q, k),
        q.dtype,
        {"density": density, "causal": causal, "cutover": True},
        "dense scaled_dot_product_attention",
        lambda: block_sparse_attention(q, k, v, plan, causal=causal, cutover=True),
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
        _shape(q, k),
        q.dtype,
        {"window": window, "causal": True},
        "masked scaled_dot_product_attention",
        lambda: block_sparse_attention(q, k, v, causal=True, window=window),
        lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        lambda: _one_head_error(block_sparse_attention(q, k, v, causal=True, window=window)[0], q, k, v, mask),
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
            return _one_head_error(run()[0], query, k, v, mask)

        def dense(query: torch.Tensor = query, whole: Any = whole, layers: Any = layers) -> torch.Tensor:
            return [_by_groups(query, key, value, whole) for key, value in layers][0]

        def by_heads(query: torch.Tensor = query, whole: Any = whole, layers: Any = layers) -> torch.Tensor:
            options = {"attn_mask": whole, "enable_gqa": True}
            return [F.scaled_dot_product_attention(query, key, value, **options) for key, value in layers][0]

        read = 2 * len(layers) * k.shape[1] * settings["tokens"] * k.shape[3] * k.element_size()
        yield KernelCase(
            "verify_attention",
            _shape(query, k),
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


def linear_cases(draw: Draw) -> Iterator[KernelCase]:
    """A few rows through the linear layers of a small model in turn, and through its head, which come from memory."""
    for shape, layers in (((1536, 576), 24), ((49152, 576), 1)):
        weights = [draw(*shape).mul_(0.02) for _ in range(layers)]  # as models begin with
        for count in (2, 4, 8, 16, 32):
            yield _linear_case(draw(count, shape[1]), weights)


def _linear_case(x: torch.Tensor, weights: list[torch.Tensor]) -> KernelCase:
    def ours() -> list[torch.Tensor]:
        return [skinny_linear(x, weight) for weight in weights]

    def plain() -> list[torch.Tensor]:
        return [F.linear(x, weight) for weight in weights]

    def error() -> float:
        return _error(ours()[0], F.linear(x.double(), weights[0].double()))

    settings = {"rows": len(x), "weight": "x".join(map(str, weights[0].shape)), "layers": len(weights)}
    read = float(sum(weight.nbytes for weight in weights))
    shape = f"{list(x.shape)} by {list(weights[0].shape)}"
    return KernelCase("skinny_linear", shape, x.dtype, settings, "linear", ours, plain, error, bytes=read)


def small_cases(draw: Draw) -> Iterator[KernelCase]:
    """Merging, writing and sampling."""
    device = draw.generator.device
    parts, lse = draw(4, 1, 8, 4096, 64), draw(4, 1, 8, 4096).float()
    weights = lse.softmax(0)[..., None]

    def merged() -> torch.Tensor:
        return (parts * weights.to(parts.dtype)).sum(0)

    def merge_error() -> float:
        return _error(merge_states(parts, lse)[0], (parts.double() * weights).sum(0))

    shape = f"{list(parts.shape)}"
    merge: Run = lambda: merge_states(parts, lse)  # noqa: E731
    yield KernelCase("merge_states", shape, draw.dtype, {}, "multiply and sum", merge, merged, merge_error)

    cache, new = draw(1, 8, 16384, 64), draw(1, 8, 4096, 64)
    slots = draw.order(16384)[:4096]
    twin, values = cache.clone(), cache.clone()

    def scatter() -> Any:
        return kv_scatter_(new, new, slots, cache, values)

    def put() -> None:
        twin[:, :, slots] = new
        twin[:, :, slots] = new

    def scatter_error() -> float:
        scatter()
        return float((cache[:, :, slots] - new).abs().max())

    yield KernelCase(
        "kv_scatter_", f"{list(new.shape)}", draw.dtype, {}, "index assignment", scatter, put, scatter_error
    )
    yield _merging_case(draw)
    p, q = (draw(4, n, 16384).float().softmax(-1) for n in (17, 16))
    tok, u = q.argmax(-1), torch.rand(4, 16, device=device)

    def sample() -> torch.Tensor:
        return residual_sample(p, q, accept_length(p, q, tok, u), seed=0)

    def multinomial() -> torch.Tensor:
        rest = (p[:, :16] - q).clamp(min=0)
        return torch.multinomial((rest / rest.sum(-1, keepdim=True))[:, 0], 1)

    def outside() -> float:
        """1 where a token was drawn that the residual does not have."""
        place = accept_length(p, q, tok, u).long()[:, None, None].expand(-1, 1, p.shape[2])
        rest = (p - F.pad(q, (0, 0, 0, 1))).gather(1, place)[:, 0]  # behind the last draft all of p is left
        return float((rest.gather(1, sample().long()[:, None]) <= 0).any())

    if draw.dtype == torch.float32:
        name = "residual of every place, normalised, and multinomial"
        yield KernelCase(
            "residual_sample", "16 drafts of 16384 codes", draw.dtype, {}, name, sample, multinomial, outside
        )


def _merging_case(draw: Draw) -> KernelCase:
    x, groups = draw(8192, 1024), 2048
    device = x.device
    label = draw.order(8192) % groups
    perm, ptr = label.argsort(stable=True), torch.arange(0, 8193, 8192 // groups, device=device)

    def added() -> torch.Tensor:
        sums = torch.zeros(groups, 1024, device=device).index_add_(0, label, x.float())
        return (sums / (8192 // groups)).to(x.dtype)

    def error() -> float:
        exact = torch.zeros(groups, 1024, dtype=torch.float64, device=device).index_add_(0, label, x.double())
        return _error(segment_mean(x, None, perm, ptr), exact / (8192 // groups))

    run: Run = lambda: segment_mean(x, None, perm, ptr)  # noqa: E731
    return KernelCase("segment_mean", "[8192, 1024] into 2048", x.dtype, {}, "index_add_", run, added, error)
