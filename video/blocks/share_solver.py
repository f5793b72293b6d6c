"""The share of its tokens that each layer recomputes, solved from the residuals of a plain run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from mmaccel.errors import SettingError
from mmaccel.method import is_count
from mmaccel.patching import wrap_forward
from mmaccel.stepping.run import SamplerRun

from ..families.adapter import PipelineSession
from ..families.families import Family
from ..recording import plain_runs
from ..steps import Forward, Stepper
from .token_cache import TokenCache, divisible_families, token_change

Array = np.ndarray[Any, np.dtype[np.float64]]
PARTS = 8  # shares are multiples of an eighth


def best_shares(errors: Array | Sequence[Sequence[float]], total: int) -> tuple[int, ...]:
    """Parts for each layer, at most `total` in all, with the least sum of errors, by dynamic programming.

    With F(l, r) the least error of the first l layers and r parts, F(l, r) = min over s of F(l-1, r-s) + C(l, s).

    Parameters
    ----------
    errors
        Remaining error `[L, G]` of layer l with s = 0, 1, ..., G - 1 parts.
    total
        Parts to distribute.

    Returns
    -------
    Parts of each layer, 0 to G - 1.

    Raises
    ------
    SettingError
        If `total` is negative, or the errors are not a table of numbers.

    Examples
    --------
    >>> best_shares([[4.0, 1.0, 0.0], [2.0, 1.9, 1.8]], 2)
    (2, 0)
    """
    table = np.asarray(errors, dtype=float)
    if table.ndim != 2 or not table.size or np.isnan(table).any():
        raise SettingError(f"errors must be a table of numbers, layers by parts, and have the shape {table.shape}")
    if not is_count(total, 0):
        raise SettingError(f"total={total!r}: it must be an integer of at least 0")
    layers, grid = table.shape
    total = min(total, layers * (grid - 1))
    least = np.zeros(total + 1)  # F(l, r), at first of no layer
    taken: list[Array] = []
    for costs in table:
        reached = np.full((grid, total + 1), np.inf)  # [s, r]
        for parts in range(min(grid, total + 1)):
            reached[parts, parts:] = least[: total + 1 - parts] + costs[parts]
        taken.append(reached.argmin(0).astype(float))
        least = reached.min(0)
    shares: list[int] = []
    for choice in reversed(taken):
        shares.append(int(choice[total - sum(shares)]))
    return tuple(reversed(shares))


def calibrate_token_cache(
    pipe: Any,
    prompts: Sequence[str] | None = None,
    budget: float = 0.5,
    *,
    interval: int = TokenCache.interval,
    warmup: int = TokenCache.warmup,
    cooldown: int = TokenCache.cooldown,
    **call: Any,
) -> TokenCache:
    """Run a pipeline plainly, and solve which share of its tokens each layer recomputes within a budget.

    The error of a share is the loss from reusing the layer's residual for the tokens whose input changes least between
    neighbouring steps: the squared change of their residual, relative to that of all tokens, averaged over steps,
    branches and runs. The run keeps the input and the residual of every layer and branch: if memory is
    short, calibrate at a smaller size, since shares do not depend on it.

    Less of this error is not always a better picture: on the untrained two-layer models of the tests, uniform shares
    came closer to the plain output. Compare both on your pipeline.

    Parameters
    ----------
    pipe
        A pipeline of a supported family.
    prompts
        One run for each; None if `call` holds embeddings instead.
    budget, interval, warmup, cooldown
        Settings of the returned method.
    **call
        Further arguments of the pipeline; the result is for its number of steps and its `strength`.

    Raises
    ------
    SettingError
        If a setting is outside its range, or the run has no step to save in.
    UnsupportedTargetError
        If the tokens of the transformer cannot be computed apart.

    Examples
    --------
    >>> method = calibrate_token_cache(pipe, ["a fox in snow"], budget=0.4)  # doctest: +SKIP
    >>> fast = mmaccel.accelerate(pipe, method)  # doctest: +SKIP
    """
    method = TokenCache(budget, interval, warmup=warmup, cooldown=cooldown)
    runs = record_errors(pipe, method, prompts, call)
    total: Array = np.sum([errors for errors, _ in runs], axis=0)
    parts = best_shares(total, int(method.share(runs[-1][1]) * len(total) * PARTS + 1e-6))
    return TokenCache(budget, interval, tuple(part / PARTS for part in parts), warmup, cooldown)


class _Recorder(Stepper):
    """Sums the errors of every layer's shares over the steps between warm-up and cool-down."""

    def __init__(self, session: PipelineSession, run: SamplerRun, method: TokenCache) -> None:
        super().__init__(session, run)
        self.method = method
        self.stack = ExitStack()
        self.made = 0  # steps: image-to-image starts further down
        self.last: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.errors: dict[int, list[Array]] = {}
        for family, denoiser in divisible_families(session.adapter):
            for layer, block in enumerate(family.block_list(denoiser)):
                wrap_forward(self.stack, block, functools.partial(self.block, family, block, layer))

    def block(
        self, family: Family, block: torch.nn.Module, layer: int, forward: Forward, *args: Any, **kwargs: Any
    ) -> Any:
        """The forward of one block."""
        before = family.streams(block, args, kwargs)[family.hidden].clone()
        output = forward(*args, **kwargs)
        added = family.returned(output)[family.hidden] - before
        run = self.run
        last = self.last.get((run.expert, run.branch, layer))
        if last is not None and self.made >= self.method.warmup and run.step < run.steps - self.method.cooldown:
            self.errors.setdefault(layer, []).append(share_errors(before, added, *last))
        self.last[run.expert, run.branch, layer] = before, added
        return output

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        self.made += 1
        return make(output, sample)

    def finish(self) -> None:
        self.session.memory["errors"] = self.errors
        self.session.memory["steps"] = self.made

    def close(self) -> None:
        self.stack.close()
        self.last.clear()


def share_errors(
    before: torch.Tensor, added: torch.Tensor, last_before: torch.Tensor, last_added: torch.Tensor
) -> Array:
    """Remaining error `[PARTS + 1]` of a layer that recomputes 0, 1, ... eighths of its tokens.

    Parameters
    ----------
    before, added : `[B, S, C]`
        Hidden states before the layer, and what it adds to them.
    last_before, last_added : `[B, S, C]`
        The same one step before.
    """
    order = token_change(before, last_before).argsort(descending=True, stable=True)
    error = token_change(added, last_added)[order].cpu().double()  # Apple's GPUs have no float64
    left = torch.cat([error.flip(0).cumsum(0).flip(0), torch.zeros(1, dtype=torch.float64)])  # behind the first ones
    size = float(added.float().square().sum())
    counts = [round(part * len(error) / PARTS) for part in range(PARTS + 1)]
    return np.asarray(left[counts] / max(size, 1e-30))


def record_errors(
    pipe: Any, method: TokenCache, prompts: Sequence[str] | None, call: dict[str, Any]
) -> list[tuple[Array, int]]:
    """Mean errors `[L, PARTS + 1]` of each of some plain runs, and its steps."""
    found = []
    for memory in plain_runs(pipe, method, lambda session, run: _Recorder(session, run, method), prompts, call):
        errors, steps = memory["errors"], memory["steps"]
        if not errors:
            raise SettingError(
                f"warmup={method.warmup} and cooldown={method.cooldown} leave none of {steps} steps: lower them"
            )
        found.append((np.stack([np.mean(errors[layer], axis=0) for layer in sorted(errors)]), steps))
    return found
