"""Which steps of a run to compute, solved from the velocities of plain runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from mmaccel.errors import SettingError
from mmaccel.session import Session, accelerate

from ..families.adapter import DiffusionMethod, DiffusionTransformerAdapter, require_steps
from ..steps import Run, Stepper, follow
from .heterogeneous_steps import HeterogeneousSteps

Array = np.ndarray[Any, np.dtype[np.float64]]


def best_steps(products: Array, levels: Sequence[float], count: int) -> tuple[int, ...]:
    """The `count` steps between which interpolated velocities are off by least, by dynamic programming.

    A step that is not computed ends up, once corrected, as if it had moved by a velocity on the line between those of
    the computed steps around it. Within a gap these errors add up as vectors, and over the gaps their sizes are
    added. What forecasts do to the sample until they are corrected is left out.

    Parameters
    ----------
    products
        Inner products `[N, N]` of the guided velocities of all steps of a plain run, or their mean over runs.
    levels
        Noise levels, of `N + 1` entries.
    count
        Steps to compute, at least 2: the first and the last always are.

    Returns
    -------
    Indices, rising.

    Raises
    ------
    SettingError
        If `count` is below 2.

    Examples
    --------
    >>> velocities = np.array([[0.0, 1.0, 2.0, 4.0, 8.0, 16.0]]).T  # hardly bent at the beginning
    >>> best_steps(velocities @ velocities.T, np.linspace(1, 0, 7), 4)
    (0, 3, 4, 5)
    """
    steps = len(products)
    if count < 2:
        raise SettingError(f"count={count}: at least 2 steps are computed")
    if count >= steps:
        return tuple(range(steps))
    gaps = _gap_errors(products, levels)
    least = np.full(steps, np.inf)  # error up to computed step j
    least[0] = 0.0
    came: list[Array] = []
    for _ in range(count - 1):
        reached = least[:, None] + gaps  # [i, j]
        came.append(reached.argmin(0).astype(float))
        least = reached.min(0)
    computed = [steps - 1]
    for table in reversed(came):
        computed.append(int(table[computed[-1]]))
    return tuple(reversed(computed))


def _gap_errors(products: Array, levels: Sequence[float]) -> Array:
    """Error `[i, j]` of the steps between computed steps `i` and `j`."""
    steps = len(products)
    moves = np.diff(np.asarray(levels, dtype=float))
    errors = np.full((steps, steps), np.inf)
    for i in range(steps):
        for j in range(i + 1, steps):
            weights = np.zeros(steps)  # of the velocities in the sum of errors
            for k in range(i + 1, j):
                share = (levels[k] - levels[i]) / (levels[j] - levels[i])
                weights[[k, i, j]] += moves[k] * np.array([1, share - 1, -share])
            errors[i, j] = max(0.0, float(weights @ products @ weights)) ** 0.5
    return errors


def calibrate_steps(
    pipe: Any, prompts: Sequence[str] | None = None, budget: float = 0.5, **call: Any
) -> HeterogeneousSteps:
    """Run a pipeline plainly, and solve which steps to compute for a budget.

    Parameters
    ----------
    pipe
        A diffusers pipeline.
    prompts
        What to run; None if `call` holds embeddings instead.
    budget
        Share of the steps to compute.
    **call
        Further arguments of the pipeline; its number of steps is what the result is for.

    Raises
    ------
    SettingError
        If the budget leaves fewer than 2 steps.

    Examples
    --------
    >>> method = calibrate_steps(pipe, ["a fox in snow"], budget=0.3)  # doctest: +SKIP
    >>> fast = mmaccel.accelerate(pipe, method)  # doctest: +SKIP
    """
    calls = [call] if prompts is None else [{**call, "prompt": prompt} for prompt in prompts]
    runs = [_record(pipe, given) for given in tqdm(calls, desc="plain runs", leave=False)]
    products: Array = np.sum([(velocities @ velocities.T).double().numpy() for velocities, _ in runs], axis=0)
    chosen = best_steps(products, runs[0][1], round(budget * len(products)))
    return HeterogeneousSteps(budget=budget, steps=chosen)


@dataclass(frozen=True)
class _Recording(DiffusionMethod):
    """Runs plainly and records; not registered, since it is no method for users."""

    name = "video.recording"

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        require_steps(adapter, "calibrate_steps")

    def attach(self, session: Session, stack: ExitStack) -> None:
        follow(session, stack, lambda run: _Recorder(session, run))


class _Recorder(Stepper):
    """Keeps the guided velocities of a run."""

    def __init__(self, session: Session, run: Run) -> None:
        super().__init__(session, run)
        session.memory["velocities"], session.memory["levels"] = [], run.levels

    def velocity(self, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        self.session.memory["velocities"].append(output.float().flatten().cpu())
        return output


def _record(pipe: Any, call: dict[str, Any]) -> tuple[torch.Tensor, list[float]]:
    """Guided velocities `[N, elements]` of a plain run, and its noise levels."""
    with accelerate(pipe, _Recording()) as session:
        session(**{"output_type": "latent", **call})
        return torch.stack(session.memory["velocities"]), session.memory["levels"]
