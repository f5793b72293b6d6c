"""The shares of its tokens that each layer recomputes, solved from the residuals of plain runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from mmaccel.patching import wrap_forward
from mmaccel.stepping.run import SamplerRun
from mmaccel.video.blocks.token_cache import TokenCache, divisible_families, token_change
from mmaccel.video.families.adapter import PipelineSession
from mmaccel.video.families.families import Family
from mmaccel.video.recording import plain_runs
from mmaccel.video.steps import Forward, Stepper

Array = np.ndarray[Any, np.dtype[np.float64]]
PARTS = 8  # shares are multiples of an eighth


def best_shares(errors: Array, total: int) -> tuple[int, ...]:
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

    Examples
    --------
    >>> best_shares(np.array([[4.0, 1.0, 0.0], [2.0, 1.9, 1.8]]), 2)
    (2, 0)
    """
    layers, grid = errors.shape
    total = min(total, layers * (grid - 1))
    least = np.zeros(total + 1)  # F(l, r), at first of no layer
    taken: list[Array] = []
    for costs in errors:
        reached = np.full((grid, total + 1), np.inf)  # [s, r]
        for parts in range(min(grid, total + 1)):
            reached[parts, parts:] = least[: total + 1 - parts] + costs[parts]
        taken.append(reached.argmin(0).astype(float))
        least = reached.min(0)
    shares: list[int] = []
    for choice in reversed(taken):
        shares.append(int(choice[total - sum(shares)]))
    return tuple(reversed(shares))


class StaleTokens:
    """A layer's residual as it would be if it recomputed a share of its tokens, those whose input changed most.

    Parameters
    ----------
    before, added : `[B, S, C]`
        Hidden states before the layer, and what it adds to them, in a step that is computed for all tokens.
    """

    def __init__(self, before: torch.Tensor, added: torch.Tensor) -> None:
        self.before, self.added = before.clone(), added.clone()

    def miss(self, before: torch.Tensor, added: torch.Tensor, part: int) -> float:
        """Go a step on with so many eighths of the tokens: the squared error that is left."""
        count = round(part * before.shape[1] / PARTS)
        tokens = token_change(before, self.before).argsort(descending=True, stable=True)[:count]
        self.before[:, tokens], self.added[:, tokens] = before[:, tokens], added[:, tokens]
        return float((added - self.added).square().sum())


class _Recorder(Stepper):
    """Sums the errors of every layer's shares over the steps that are not full."""

    def __init__(self, session: PipelineSession, run: SamplerRun, method: TokenCache) -> None:
        super().__init__(session, run)
        self.method, self.stack = method, ExitStack()
        self.stale: dict[tuple[int, int], list[StaleTokens]] = {}  # for each part, by branch and layer
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
        key = self.run.branch, layer
        if key not in self.stale or self.method.is_full(self.run.step, self.run.steps):
            self.stale[key] = [StaleTokens(before, added) for _ in range(PARTS)]
        else:
            missed = [each.miss(before, added, part) for part, each in enumerate(self.stale[key])]
            self.errors.setdefault(layer, []).append(np.array([*missed, 0.0]))
        return output

    def finish(self) -> None:
        self.session.memory["errors"] = self.errors

    def close(self) -> None:
        self.stack.close()
        self.stale.clear()


def record_errors(pipe: Any, method: TokenCache, prompts: Sequence[str], call: dict[str, Any]) -> Array:
    """Errors `[L, PARTS + 1]` that each layer is left with by 0, 1, ... eighths of its tokens, mean over plain runs.

    The squared error of what a layer adds, of all tokens, where the others are as old as the method lets them become.
    """
    found = []
    for memory in plain_runs(pipe, method, lambda session, run: _Recorder(session, run, method), prompts, call):
        errors = memory["errors"]
        found.append(np.stack([np.mean(errors[layer], axis=0) for layer in sorted(errors)]))
    return np.asarray(np.mean(found, axis=0))
