"""Spectrum (2026) as a rival: the blocks' output forecast by Chebyshev polynomials over the steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mmaccel.patching import wrap_forward

WARMUP, WINDOW = 5, 2.0  # full steps at first, and the first distance between full steps
TERMS, RIDGE = 5, 0.1
POLYNOMIAL = 0.5  # share of the polynomial in a forecast; the rest is a line through the last two


def full_steps(steps: int, growth: float) -> list[int]:
    """The steps that are computed; `growth` is added to the distance between them after each.

    Examples
    --------
    >>> full_steps(16, 1.0)
    [0, 1, 2, 3, 4, 6, 9, 13]
    """
    found, window = list(range(min(WARMUP, steps))), WINDOW
    while found[-1] + int(window) < steps:
        found.append(found[-1] + int(window))
        window += growth
    return found


def forecast(outputs: dict[int, torch.Tensor], step: int, steps: int) -> torch.Tensor:
    """The output at a step from those of earlier ones: half a ridge regression, half a line."""
    known = list(outputs)
    basis = chebyshev([2 * k / steps - 1 for k in known])
    here = chebyshev([2 * step / steps - 1])
    weights = here @ torch.linalg.solve(basis.T @ basis + RIDGE * torch.eye(TERMS, dtype=basis.dtype), basis.T)
    polynomial = sum(float(weight) * outputs[k] for weight, k in zip(weights[0], known, strict=True))
    last, before = known[-1], known[-2]
    line = outputs[last] + (step - last) / (last - before) * (outputs[last] - outputs[before])
    return POLYNOMIAL * polynomial + (1 - POLYNOMIAL) * line


def chebyshev(places: list[float]) -> torch.Tensor:
    """The polynomials T_0 to T_4 at some places, `[places, 5]`, float64."""
    x = torch.tensor(places, dtype=torch.float64)
    found = [torch.ones_like(x), x]
    while len(found) < TERMS:
        found.append(2 * x * found[-1] - found[-2])
    return torch.stack(found, 1)


class Spectrum:
    """Replaces the forward passes of a Wan transformer's blocks, from one call of the pipeline to its end."""

    def __init__(self, growth: float, pipe: Any) -> None:
        self.growth, self.pipe = growth, pipe
        self.steps, self.step, self.branch, self.time = 0, -1, -1, float("nan")
        self.outputs: dict[int, dict[int, torch.Tensor]] = {}  # by branch of the guidance and step

    def begin(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One pass of the transformer: a new timestep is a new step."""
        time = float(kwargs["timestep"].flatten()[0])
        self.branch = self.branch + 1 if time == self.time else 0
        self.step, self.time = self.step + (time != self.time), time
        self.steps = len(self.pipe.scheduler.timesteps)
        return original(*args, **kwargs)

    def block(self, is_last: bool, original: Callable[..., Any], hidden: torch.Tensor, *args: Any) -> torch.Tensor:
        """One pass of a block; of a skipped step only the last one answers."""
        known = self.outputs.setdefault(self.branch, {})
        if self.step not in full_steps(self.steps, self.growth):
            return forecast(known, self.step, self.steps) if is_last else hidden
        output: torch.Tensor = original(hidden, *args)
        if is_last:
            known[self.step] = output
        return output


@contextmanager
def spectrum(growth: float, pipe: Any) -> Iterator[Any]:
    """The pipeline with Spectrum on it, for one call."""
    transformer, state = pipe.transformer, Spectrum(growth, pipe)
    with ExitStack() as stack:
        wrap_forward(stack, transformer, state.begin)
        for block in transformer.blocks:
            wrap_forward(stack, block, functools.partial(state.block, block is transformer.blocks[-1]))
        yield pipe
