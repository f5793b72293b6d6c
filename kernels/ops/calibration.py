"""At what density block-sparse attention pays: measured on this machine, not assumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch.nn import functional as F

from .checks import require
from .plan import BlockPlan, window_sides
from .sparse_op import attend

LENGTHS = (512, 2048, 8192)
CPU_LENGTHS = (512, 2048, 4096)  # longer ones behave as the last does, and would take seconds
DENSITIES = (0.25, 0.5, 0.75)
REPEATS = 3
HEADS, WIDTH, BLOCK = 4, 64, 64


@dataclass(frozen=True)
class Calibration:
    """Break-even densities of one device.

    Attributes
    ----------
    lengths
        Tokens of the measured sequences, ascending.
    break_even
        Share of visible blocks at each, below which block-sparse attention is faster than dense.
    """

    lengths: tuple[int, ...]
    break_even: tuple[float, ...]

    def at(self, n: int) -> float:
        """Break-even density for `n` tokens, between measured lengths on a logarithmic scale."""
        if n <= self.lengths[0]:
            return self.break_even[0]
        for i in range(1, len(self.lengths)):
            low, high = self.lengths[i - 1], self.lengths[i]
            if n <= high:
                share = math.log(n / low) / math.log(high / low)
                return self.break_even[i - 1] + share * (self.break_even[i] - self.break_even[i - 1])
        return self.break_even[-1]


def should_use_sparse(
    density: float,
    n: int,
    device: torch.device | str = "cpu",
    causal: bool = False,
    dtype: torch.dtype | None = None,
) -> bool:
    """Whether block-sparse attention is faster than dense at this density.

    The first call for a device, type and direction measures it, in a second or two; :func:`calibrate` does so when
    asked.

    Parameters
    ----------
    density
        Share of the visible blocks that are attended to, 0 to 1.
    n
        Tokens of the sequence.
    device
        Where it will run.
    causal
        Whether queries see only what is before them, which dense attention makes use of too; default False.
    dtype
        Of queries and keys, default float32 on a CPU and bfloat16 elsewhere.

    Raises
    ------
    ValueError
        If `density` is outside [0, 1] or `n` is below 1.

    Examples
    --------
    >>> should_use_sparse(1.0, 4096)
    False
    """
    require(0 <= density <= 1, "density", "between 0 and 1", density)
    require(n >= 1, "n", "at least 1", n)
    if density == 1:
        return False
    device = torch.device(device)
    return density < _kept(str(device), causal, dtype or _usual_dtype(device)).at(n)


def _usual_dtype(device: torch.device) -> torch.dtype:
    """The type that models usually run in on a device."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


@cache
def _kept(device: str, causal: bool, dtype: torch.dtype) -> Calibration:
    return calibrate(device, causal, dtype)


def calibrate(
    device: torch.device | str = "cpu", causal: bool = False, dtype: torch.dtype | None = None
) -> Calibration:
    """Measure the break-even density at several lengths.

    Parameters
    ----------
    device
        What to measure.
    causal
        Whether for causal attention; default False.
    dtype
        In which type, default float32 on a CPU and bfloat16 elsewhere.

    Examples
    --------
    >>> calibrate("cpu").lengths
    (512, 2048, 4096)
    """
    device = torch.device(device)
    dtype = dtype or _usual_dtype(device)
    lengths = CPU_LENGTHS if device.type == "cpu" else LENGTHS
    return Calibration(lengths, tuple(_break_even(n, device, causal, dtype) for n in lengths))


@torch.no_grad()
def _break_even(n: int, device: torch.device, causal: bool, dtype: torch.dtype) -> float:
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, n, WIDTH, device=device, generator=generator).to(dtype) for _ in range(3))
    blocks = n // BLOCK
    # every row with as many blocks, as policies with a budget choose them, its own first
    own = torch.eye(blocks, dtype=torch.bool, device=device)
    drawn = torch.rand(1, HEADS, blocks, blocks, device=device, generator=generator).masked_fill(own, -1)
    order = drawn.argsort(-1).argsort(-1)
    masks = [order < max(1, round(density * blocks)) for density in DENSITIES]
    plans = [BlockPlan.from_mask(mask, q_len=n, kv_len=n, causal=causal) for mask in masks]
    sides = window_sides(None, causal)
    runs: list[Callable[[], object]] = [partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal)]
    runs += [partial(attend, q, k, v, plan, *sides) for plan in plans]
    dense, *sparse = _fastest(runs, device)
    return _crossing(dense, sparse, [plan.visible_share(causal) for plan in plans])


def _crossing(dense: float, sparse: list[float], densities: list[float]) -> float:
    """Where the line through the two measured densities around it, or next to it, reaches the dense seconds."""
    i = 0 if dense <= sparse[1] else 1
    slope = max(sparse[i + 1] - sparse[i], 1e-9) / (densities[i + 1] - densities[i])
    return min(1.0, max(0.0, densities[i] + (dense - sparse[i]) / slope))


def _fastest(runs: list[Callable[[], object]], device: torch.device) -> list[float]:
    """Least seconds of each over several turns, since other work on the machine only adds to them."""
    seconds = [math.inf] * len(runs)
    for turn in range(REPEATS + 1):
        for i, run in enumerate(runs):
            _wait(device)
            began = time.perf_counter()
            run()
            _wait(device)
            if turn:  # the first one warms up
                seconds[i] = min(seconds[i], time.perf_counter() - began)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
