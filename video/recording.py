"""Plain runs of a pipeline that are followed, to calibrate a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from mmaccel.session import accelerate
from mmaccel.stepping.run import SamplerRun

from .families.adapter import DiffusionMethod, DiffusionTransformerAdapter, PipelineSession
from .following import follow
from .steps import Stepper


@dataclass(frozen=True)
class _Recording(DiffusionMethod):
    """Runs plainly and records; not registered, since it is not for users."""

    name = "video.recording"
    method: DiffusionMethod
    recorder: Callable[[PipelineSession, SamplerRun], Stepper]

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        self.method.check(adapter)

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        follow(session, stack, lambda run: self.recorder(session, run))


def plain_runs(
    pipe: Any,
    method: DiffusionMethod,
    recorder: Callable[[PipelineSession, SamplerRun], Stepper],
    prompts: Sequence[str] | None,
    call: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """The records that ``recorder(session, run)`` left in `session.memory` after each of several plain runs.

    Parameters
    ----------
    pipe
        A pipeline.
    method
        The method to calibrate; it first checks the pipeline.
    prompts
        One run for each, or for a single string; None makes a single run with the arguments as they are.
    call
        Further arguments of the pipeline.
    """
    with accelerate(pipe, _Recording(method, recorder)) as session:
        asked = [prompts] if isinstance(prompts, str) else prompts or ()
        for more in tqdm([{"prompt": prompt} for prompt in asked] or [{}], desc="plain runs", leave=False):
            session(**{**call, **more})
            yield session.memory
