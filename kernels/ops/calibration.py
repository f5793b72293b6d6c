"""At what density block-sparse attention pays: measured on this machine, not assumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from .checks import require
from .plan import BlockPlan

LENGTHS = (512, 2048, 8192)
CPU_LENGTHS = LENGTHS[:2]  # longer ones behave as the last does, and would take seconds
DENSITIES = (0.25, 0.75)
REPEATS = 5
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


def should_use_sparse(density: float, n: int, device: torch.device | str = "cpu") -> bool:
    """Whether block-sparse attention is faster than dense at this density.

    The first call for a device measures it, in under a second; :func:`calibrate` does so when asked.

    Parameters
    ----------
    density
        Share of the visible blocks that are attended to, 0 to 1.
    n
        Tokens of the sequence.
    device
        Where it will run.

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
    return density < _kept(str(torch.device(device))).at(n)


@cache
def _kept(device: str) -> Calibration:
    return calibrate(device)


def calibrate(device: torch.device | str = "cpu") -> Calibration:
    """Measure the break-even density at several lengths, in the type that models run in there.

    Parameters
    ----------
    device
        What to measure: float32 on a CPU, bfloat16 elsewhere.

    Examples
    --------
    >>> calibrate("cpu").lengths
    (512, 2048)
    """
    device = torch.device(device)
    lengths = CPU_LENGTHS if device.type == "cpu" else LENGTHS
    return Calibration(lengths, tuple(_break_even(n, device) for n in lengths))


@torch.no_grad()
def _break_even(n: int, device: torch.device) -> float:
    from .block_sparse_attention import block_sparse_attention

    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(1, HEADS, n, WIDTH, device=device, generator=generator).to(dtype) for _ in range(3))
    blocks = n // BLOCK
    # every row with as many blocks, as policies with a budget choose them
    order = torch.rand(1, HEADS, blocks, blocks, device=device, generator=generator).argsort(-1).argsort(-1)
    plans = [BlockPlan.from_mask(order < max(1, round(d * blocks)), q_len=n, kv_len=n) for d in DENSITIES]
    runs: list[Callable[[], object]] = [lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)]
    runs += [lambda plan=plan: block_sparse_attention(q, k, v, plan) for plan in plans]  # type: ignore[misc]
    dense, low, high = _fastest(runs, device)
    (d_low, d_high), slope = (plan.density for plan in plans), max(high - low, 1e-9)
    return min(1.0, max(0.0, d_low + (dense - low) * (d_high - d_low) / slope))


def _fastest(runs: list[Callable[[], object]], device: torch.device) -> list[float]:
    """Least seconds of each over several turns: what others do on the machine only ever adds."""
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
