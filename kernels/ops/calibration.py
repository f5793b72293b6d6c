"""At what density block-sparse attention pays: measured on this machine, not assumed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional as F

from .block_sparse_attention import block_sparse_attention
from .checks import require
from .choosing import kept_or_measured
from .plan import BlockPlan
from .timing import fastest

LENGTHS = (512, 2048, 8192)
CPU_LENGTHS = (512, 2048, 4096)  # longer ones behave as the last does, and would take seconds
DENSITIES = (0.25, 0.5, 0.75)
# By direction, where the machine is too busy to measure: a little below what quiet processors of two makers measured.
USUAL = {False: 0.5, True: 0.4}
HEADS, WIDTH, BLOCK = 4, 64, 64
CUDA_HEADS, CUDA_WIDTH = 16, 128  # fewer would not fill such a GPU, and measure launches
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Calibration:
    """Break-even densities of one device.

    Attributes
    ----------
    lengths
        Tokens of the measured sequences, ascending.
    break_even
        Share of visible blocks at each, below which block-sparse attention is faster than dense.
    measured
        False where the machine was too busy, so that the usual break-even stands here; default True.
    """

    lengths: tuple[int, ...]
    break_even: tuple[float, ...]
    measured: bool = True

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

    The first call for a device, type and direction measures it, in a second or two. On a CPU the verdict is kept in
    the user's cache folder, for this processor, number of threads and torch, and later processes take it from there.
    While other work runs, nothing is kept and the usual break-even stands in (0.5, causal 0.4). Within a process the
    break-even never changes once it was used, so that two runs with equal inputs compute the same.

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
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    with _LOCK:  # two threads must not measure against each other, nor find two verdicts
        calibration = _kept(str(device), causal, dtype or _usual_dtype(device), threads)
    return density < calibration.at(n)


def _usual_dtype(device: torch.device) -> torch.dtype:
    """The type that models usually run in on a device."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


@cache
def _kept(device: str, causal: bool, dtype: torch.dtype, threads: int) -> Calibration:
    """The one calibration of this process; `threads` is part of what it holds for."""
    if torch.device(device).type != "cpu":
        return calibrate(device, causal, dtype)

    def measure() -> list[float] | None:
        found = calibrate(device, causal, dtype)
        return [round(share, 3) for share in found.break_even] if found.measured else None

    name = f"break-even of block-sparse attention, {str(dtype)[6:]}{', causal' * causal}"
    shares = kept_or_measured(name, measure, _are_shares)
    return _usual(CPU_LENGTHS, causal) if shares is None else Calibration(CPU_LENGTHS, tuple(shares))


def _are_shares(kept: Any) -> bool:
    """Whether these are break-even densities of all lengths."""
    is_list = isinstance(kept, list) and len(kept) == len(CPU_LENGTHS)
    return is_list and all(isinstance(share, int | float) and 0 <= share <= 1 for share in kept)


def _usual(lengths: tuple[int, ...], causal: bool) -> Calibration:
    return Calibration(lengths, (USUAL[causal],) * len(lengths), measured=False)


def calibrate(
    device: torch.device | str = "cpu", causal: bool = False, dtype: torch.dtype | None = None
) -> Calibration:
    """Measure the break-even density at several lengths, now; :func:`should_use_sparse` does not change by that.

    Dense and sparse attention take turns. Rounds in which other work took the processor do not count, and where too
    few are left, the usual break-even comes back, with `measured` False.

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
    found = []
    for n in lengths:
        share = _break_even(n, device, causal, dtype)
        if share is None:
            return _usual(lengths, causal)
        found.append(share)
    return Calibration(lengths, tuple(found))


@torch.no_grad()
def _break_even(n: int, device: torch.device, causal: bool, dtype: torch.dtype) -> float | None:
    """The share at one length; None where the machine was too busy to tell."""
    generator = torch.Generator(device).manual_seed(0)
    heads, width = (CUDA_HEADS, CUDA_WIDTH) if device.type == "cuda" else (HEADS, WIDTH)
    q, k, v = (torch.randn(1, heads, n, width, device=device, generator=generator).to(dtype) for _ in range(3))
    blocks = n // BLOCK
    # every row with as many blocks, as policies with a budget choose them, its own first
    own = torch.eye(blocks, dtype=torch.bool, device=device)
    drawn = torch.rand(1, heads, blocks, blocks, device=device, generator=generator).masked_fill(own, -1)
    order = drawn.argsort(-1).argsort(-1)
    masks = [order < max(1, round(density * blocks)) for density in DENSITIES]
    plans = [BlockPlan.from_mask(mask, q_len=n, kv_len=n, causal=causal) for mask in masks]
    runs: list[Callable[[], object]] = [partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal)]
    runs += [partial(block_sparse_attention, q, k, v, plan, causal=causal) for plan in plans]
    timing = fastest(runs, device)
    dense, *sparse = timing.seconds
    return _crossing(dense, sparse, [plan.visible_share(causal) for plan in plans]) if timing.quiet else None


def _crossing(dense: float, sparse: list[float], densities: list[float]) -> float:
    """Where the line through the two measured densities around it, or next to it, reaches the dense seconds."""
    i = 0 if dense <= sparse[1] else 1
    slope = max(sparse[i + 1] - sparse[i], 1e-9) / (densities[i + 1] - densities[i])
    return min(1.0, max(0.0, densities[i] + (dense - sparse[i]) / slope))
