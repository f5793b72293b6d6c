"""Calibration of HeterogeneousSteps: which steps to compute, solved from the velocities of plain runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mmaccel.errors import SettingError
from mmaccel.machine import unrounded
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.solver import Array, best_steps

from ..families.adapter import PipelineSession, refuse_frame_samplers
from ..recording import plain_runs
from ..steps import Forward, Stepper
from .clean_samples import mixtures
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
    method = HeterogeneousSteps(budget)
    runs = record_products(pipe, prompts, call)
    products: Array = np.sum([one for one, *_ in runs], axis=0)
    _, levels, first = runs[0]
    steps, count = len(products), round(budget * len(products))
    if count < 2 <= steps:
        raise SettingError(
            f"budget={budget:g} of {steps} steps is {count}, and at least 2 are computed: try budget={2 / steps:.2g}"
        )
    chosen = best_steps(products, levels, count)
    return replace(method, steps=tuple(first + step for step in chosen))


class _Recorder(Stepper):
    """Keeps what is forecast in a run, velocities or clean samples, of the last that steps where there are more."""

    def __init__(self, session: PipelineSession, run: SamplerRun) -> None:
        super().__init__(session, run)
        self.velocities: list[torch.Tensor] = []
        self.mixtures = mixtures(session.target.scheduler)

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        run = self.run
        if not self.velocities:  # image-to-image starts further down
            self.session.memory.update(velocities=self.velocities, levels=run.levels[run.step :], first=run.step)
        is_clean = self.mixtures and output.shape == sample.shape
        forecast = self.mixtures[run.step].clean(output, sample) if is_clean else output
        self.velocities.append(forecast.float().flatten().cpu())
        return make(output, sample)


def record_products(
    pipe: Any, prompts: Sequence[str] | None, call: dict[str, Any]
) -> list[tuple[Array, list[float], int]]:
    """Inner products `[N, N]` of the guided velocities of each of some plain runs, noise levels, and the first's index.

    The velocities, of which there are as many as steps, are kept for one run at a time.
    """
    runs = plain_runs(pipe, HeterogeneousSteps(), _Recorder, prompts, {"output_type": "latent", **call})
    return [(_products(memory.pop("velocities")), memory["levels"], memory["first"]) for memory in runs]


def _products(velocities: list[torch.Tensor]) -> Array:
    rows = torch.stack(velocities)
    with unrounded():
        return (rows @ rows.T).double().numpy()
