"""EasyCache: a step is reused while the predicted change of its output stays small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .reuse import BranchState, StepReuse
from .run import SamplerRun
from .tensors import map_tensors, mean_change, mean_size, predicted


@dataclass
class _Predicted(BranchState):
    """What one branch remembers; all but the output only in the branch that decides. `seen` is the last input."""

    inputs: list[torch.Tensor] = field(default_factory=list)  # of the last computed step
    output: Any = None
    ratio: float | None = None  # of output change to input change

    def predict(self, inputs: list[torch.Tensor], seen: list[torch.Tensor]) -> float:
        """Relative change of the output that follows from the input's change since the last step, if it does."""
        if self.ratio is None:
            return float("inf")
        return self.ratio * mean_change(inputs, seen) / max(mean_size(predicted(self.output)), 1e-12)

    def measure(self, inputs: list[torch.Tensor], output: Any) -> None:
        """Take in a computed step, before its output is remembered; `inputs` stay as they are."""
        if self.inputs:
            moved = mean_change(inputs, self.inputs)
            self.ratio = mean_change(predicted(output), predicted(self.output)) / moved if moved > 0 else None
        self.inputs = self.seen


class EasyReuse(StepReuse):
    """EasyCache's rule and memory, for the model of any sampler.

    The ratio of output change to input change is measured in the last two computed steps; with it the input change of
    every step predicts the output change. Predictions add up until `threshold`; then a step is computed. Reused steps
    have the output of the last computed one. Lossy, and exact with a threshold of 0.

    Parameters
    ----------
    run
        Where the sampler is; kept up to date by whoever steps it.
    threshold
        Predicted relative change, added up, from which a step is computed.
    warmup, cooldown
        First and last steps that are always computed.

    Examples
    --------
    >>> run = SamplerRun(4, [1.0, 0.75, 0.5, 0.25, 0.0])
    >>> cache, computed = EasyReuse(run, threshold=9.0, warmup=2, cooldown=0), []
    >>> for run.step in range(4):
    ...     run.branch = 0
    ...     x = torch.full((2,), float(run.step))
    ...     output, done = cache.answer([x], lambda x=x: 2 * x)
    ...     computed.append(done)
    >>> computed, output.tolist()
    ([1.0, 1.0, 0.0, 0.0], [2.0, 2.0])
    """

    def __init__(self, run: SamplerRun, threshold: float = 0.05, warmup: int = 5, cooldown: int = 1) -> None:
        super().__init__(run, threshold, warmup, cooldown, _Predicted)

    def answer(self, inputs: list[torch.Tensor], compute: Callable[[], Any]) -> tuple[Any, float]:
        """The output of a forward pass, and the share of it that was computed: 1 or 0.

        Parameters
        ----------
        inputs
            The tensors by whose change that of the output is predicted.
        compute
            Runs the model; what it returns may be a tensor, or hold several. Plain dictionaries in it, of keys and
            values that it was given, are handed on as they are.
        """
        self.begin()
        if self.leads:
            self._predict(inputs)
        state = self.state
        if self.skips:
            return map_tensors(torch.clone, state.output, skip=dict), 0.0
        output = compute()
        if self.leads:
            state.measure(inputs, output)
        state.output = map_tensors(torch.clone, output, skip=dict)  # compiled models write their next output there
        self.computed()
        return output, 1.0

    def _predict(self, inputs: list[torch.Tensor]) -> None:
        """Add up the predicted change of this step, and decide."""
        state = self.state
        seen, state.seen = state.seen, [x.clone() for x in inputs]
        if self.may_reuse:  # where the ratio is unknown, too: all devices that share the model decide together
            state.error += state.predict(inputs, seen)
            self.decide(state.error)
