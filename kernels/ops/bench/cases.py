"""What `mmaccel bench kernels` times: every op at its shapes, torch's own way, and the error to float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from .. import accept_length, residual_sample, segment_mean, skinny_linear
from .attention_cases import decode_cases, sparse_case, window_case
from .case import Draw, KernelCase, Run, error_of

# Weights, and how many of them make up more than a cache holds: of models of 0.1, 0.5, 1 and 7 billion, and of a head.
LAYERS = {(1536, 576): 24, (4864, 896): 6, (2048, 8192): 2, (18944, 3584): 1, (49152, 576): 1}
DENSITIES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


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


def linear_cases(draw: Draw) -> Iterator[KernelCase]:
    """A few rows through layers of small and large models in turn, and through a head, which come from memory."""
    for shape, layers in LAYERS.items():
        weights = [draw(*shape).mul_(0.02) for _ in range(layers)]  # as models begin with
        for count in (1, 2, 4, 8, 16, 32):
            yield _linear_case(draw(count, shape[1]), weights)


def _linear_case(x: torch.Tensor, weights: list[torch.Tensor]) -> KernelCase:
    def ours() -> list[torch.Tensor]:
        return [skinny_linear(x, weight) for weight in weights]

    def plain() -> list[torch.Tensor]:
        return [F.linear(x, weight) for weight in weights]

    def error(way: Callable[[], list[torch.Tensor]] = ours) -> float:
        return error_of(way()[0], F.linear(x.double(), weights[0].double()))

    settings = {"rows": len(x), "weight": "x".join(map(str, weights[0].shape)), "layers": len(weights)}
    read = float(sum(weight.nbytes for weight in weights))
    shape = f"{list(x.shape)} by {list(weights[0].shape)}"
    usual = functools.partial(error, plain)
    return KernelCase(
        "skinny_linear", shape, x.dtype, settings, "linear", ours, plain, error, bytes=read, usual_error=usual
    )


def small_cases(draw: Draw) -> Iterator[KernelCase]:
    """Merging and sampling."""
    device = draw.generator.device
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
        return error_of(segment_mean(x, None, perm, ptr), exact / (8192 // groups))

    run: Run = lambda: segment_mean(x, None, perm, ptr)  # noqa: E731
    return KernelCase("segment_mean", "[8192, 1024] into 2048", x.dtype, {}, "index_add_", run, added, error)
