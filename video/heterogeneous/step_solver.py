"""Calibration of HeterogeneousSteps: which steps to compute, solved from the velocities of plain runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.solver import Array, best_steps

from ..families.adapter import PipelineSession, refuse_frame_samplers
from ..recording import plain_runs
from ..steps import Forward, Stepper
from .heterogeneous_steps import HeterogeneousSteps


def calibrate_steps(
    pipe: Any, prompts: Sequence[str] | None = None, budget: float = 0.5, **call: Any
) -> HeterogeneousSteps:
    """Run a pipeline plainly, and solve which steps to compute for a budget.

    Parameters
    ----------
    pipe
        A diffusers pipeline.
    prompts
        One run for each; None if `call` holds embeddings instead.
    budget
        Share of the steps to compute.
    **call
        Further arguments of the pipeline; the result is for its number of steps and its `strength`.

    Raises
    ------
    SettingError
        If the budget leaves fewer than 2 steps.
    UnsupportedTargetError
        If every frame has a sampler of its own (diffusion forcing).

    Examples
    --------
    >>> method = calibrate_steps(pipe, ["a fox in snow"], budget=0.3)  # doctest: +SKIP
    >>> fast = mmaccel.accelerate(pipe, method)  # doctest: +SKIP
    """
    refuse_frame_samplers(pipe, "calibrate_steps")
    runs = record_velocities(pipe, prompts, call)
    products: Array = np.sum([(velocities @ velocities.T).double().numpy() for velocities, *_ in runs], axis=0)
    _, levels, first = runs[0]
    chosen = best_steps(products, levels, round(budget * len(products)))
    return HeterogeneousSteps(budget=budget, steps=tuple(first + step for step in chosen))


class _Recorder(Stepper):
    """Keeps the guided velocities of a run."""

    def __init__(self, session: PipelineSession, run: SamplerRun) -> None:
        super().__init__(session, run)
        session.memory["velocities"] = []

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        memory, run = self.session.memory, self.run
        if not memory["velocities"]:  # image-to-image starts further down
            memory["levels"], memory["first"] = run.levels[run.step :], run.step
        memory["velocities"].append(output.float().flatten().cpu())
        return make(output, sample)


def record_velocities(
    pipe: Any, prompts: Sequence[str] | None, call: dict[str, Any]
) -> list[tuple[torch.Tensor, list[float], int]]:
    """Guided velocities `[N, elements]` of each of some plain runs, their noise levels, and the first one's index."""
    runs = plain_runs(pipe, HeterogeneousSteps(), _Recorder, prompts, {"output_type": "latent", **call})
    return [(torch.stack(memory["velocities"]), memory["levels"], memory["first"]) for memory in runs]
