"""Which steps are answered from memory: one decision per step, one state per branch.

The first forward pass of a step decides, and the step's other guidance branches follow, so that guidance does not mix a
computed prediction with a remembered one. Only a branch that begins within a reused step is computed beside one; then
all are computed in the next step. What is remembered is kept for each branch and each expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .run import SamplerRun
from .tensors import relative_change


@dataclass
class BranchState:
    """What one branch remembers.

    Attributes
    ----------
    step
        When it was last computed, at first -1.
    residual
        What was added to the input then.
    seen
        The values with which the next ones are compared; in the branch that decides.
    error
        Estimated change since it was last computed, added up.
    """

    step: int = -1
    residual: Any = None
    seen: Any = None
    error: float = 0.0

    def change(self, values: Iterable[torch.Tensor]) -> float:
        """Relative change from what was seen to these values; infinite if nothing was."""
        return float("inf") if self.seen is None else relative_change(values, self.seen)


class StepReuse:
    """Decides in one run which steps are reused.

    Parameters
    ----------
    run
        Where the sampler is; kept up to date by whoever steps it.
    threshold
        Error from which a step is computed; 0 computes all.
    warmup, cooldown
        First and last steps that are always computed.
    make_state
        Makes what one branch remembers: an object with an attribute `step`, when it was last computed, at first -1.

    Attributes
    ----------
    reuse
        What the first branch of the current step decided.
    leader
        The expert that ran that branch; in some models the others have one of their own.
    smallest
        The smallest error that was too large, for advice.
    outvoted
        Whether another device had a step computed that this one would have reused.
    agree
        Whether any of several devices that share the model says so, of what is to be computed; by default its own word.
    """

    def __init__(
        self,
        run: SamplerRun,
        threshold: float = 0.0,
        warmup: int = 1,
        cooldown: int = 0,
        make_state: Callable[[], Any] = BranchState,
    ) -> None:
        self.run, self.threshold, self.warmup, self.cooldown = run, threshold, warmup, cooldown
        self.make_state = make_state
        self.agree: Callable[[bool], bool] = bool
        self.first_step: int | None = None
        self.reuse, self.leader, self.outvoted = False, 0, False
        self.smallest = float("inf")
        self.states: dict[tuple[int, int], Any] = {}

    def begin(self) -> None:
        """A forward pass begins, for which `run` has been brought up to date."""
        if self.first_step is None:
            self.first_step = self.run.step
        if self.leads:
            self.reuse, self.leader = False, self.run.expert

    @property
    def state(self) -> Any:
        """What the current branch of the current expert remembers."""
        return self.states.setdefault((self.run.expert, self.run.branch), self.make_state())

    @property
    def leads(self) -> bool:
        """Whether the current branch decides for the step."""
        return self.run.branch == 0

    @property
    def steps_since(self) -> int:
        """Steps since the first of the run: image-to-image begins further down."""
        return self.run.step - (self.first_step or 0)

    @property
    def may_reuse(self) -> bool:
        """Whether this step is behind the warm-up and before the cool-down, and its branch remembers enough.

        A branch that was not there in the last computed step (guidance for a part of the steps) is computed.
        """
        free = self.steps_since >= self.warmup and self.run.step < self.run.steps - self.cooldown
        leader = self.states.get((self.leader, 0))
        return free and leader is not None and 0 <= leader.step <= self.state.step

    @property
    def skips(self) -> bool:
        """Whether this forward pass is answered from memory, as its step's first branch decided."""
        return self.reuse and self.may_reuse

    def decide(self, error: float) -> None:
        """Reuse this step if its error allows it."""
        is_large = not error < self.threshold  # as NaN is
        self.reuse = not self.agree(is_large)
        if is_large:
            self.smallest = min(self.smallest, error)
        elif not self.reuse:
            self.outvoted = True

    def accumulate(self, values: list[torch.Tensor], rescale: Callable[[float], float] = float) -> float:
        """The rule of TeaCache: changes of a signal from step to step add up to an error, by which to decide.

        Parameters
        ----------
        values
            The signal in this step, such as the input of a model.
        rescale
            Estimates from its relative change that of the output.

        Returns
        -------
        The relative change of the signal, infinite in the first step.
        """
        state = self.state
        change: float = state.change(values)
        state.seen = [x.clone() for x in values]
        if self.may_reuse:
            state.error += rescale(change)
            self.decide(state.error)
        return change

    def compare(self, values: list[torch.Tensor]) -> None:
        """The rule of First Block Cache: the change of a signal since it was last computed decides."""
        if self.may_reuse:
            self.decide(self.state.change(values))
        if not self.reuse:
            self.state.seen = values

    def computed(self, residual: Any = None) -> None:
        """The current branch was computed, and remembers what was added to its input."""
        if self.reuse:  # alone, since it begins here: the predictions of this step are of different ones
            self.states[self.leader, 0].step = -1
        state = self.state
        state.step, state.residual, state.error = self.run.step, residual, 0.0

    def too_short(self) -> str:
        """Why no step of this run could be reused, if it has no more than warm-up and cool-down."""
        window, steps = self.warmup + self.cooldown, self.run.steps - (self.first_step or 0)
        return f"warmup and cooldown take {window} steps and the run has {steps}: lower them" if window >= steps else ""

    def advice(self) -> str:
        """Why no error was small enough, and what to try."""
        if self.outvoted:
            return "another process computed what this one would have reused: try the threshold that it advises"
        if self.smallest < float("inf"):
            return f"the smallest change was {self.smallest:.2g}: try threshold={1.2 * self.smallest:.2g}"
        return "no step had a finite change"
