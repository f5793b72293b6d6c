"""EasyCache: a step is reused while the predicted change of its output stays small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .reuse import BranchState, StepReuse
from .run import SamplerRun
from .tensors import map_tensors, mean_change, mean_size, plus, predicted


@dataclass
class _Predicted(BranchState):
    """What one branch remembers; all but the residual only in the branch that decides. `seen` is the last input."""

    inputs: list[torch.Tensor] = field(default_factory=list)  # of the last computed step
    outputs: list[torch.Tensor] = field(default_factory=list)
    ratio: float | None = None  # of output change to input change

    def predict(self, inputs: list[torch.Tensor], seen: list[torch.Tensor]) -> float:
        """Relative change of the output that follows from the input's change since the last step."""
        assert self.ratio is not None
        return self.ratio * mean_change(inputs, seen) / max(mean_size(self.outputs), 1e-12)

    def measure(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Take in the last two computed steps; `inputs` stay as they are."""
        if self.outputs:
            moved = mean_change(inputs, self.inputs)
            self.ratio = mean_change(outputs, self.outputs) / moved if moved > 0 else None
        self.inputs, self.outputs = self.seen, outputs


class EasyReuse(StepReuse):
    """EasyCache's rule and memory, for the model of any sampler.

    The ratio of output change to input change is measured in the last two computed steps; with it the input change of
    every step predicts the output change. Predictions add up until `threshold`; then a step is computed. Reused steps
    add to their input what the last computed one added. Lossy, and exact with a threshold of 0.

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
    ([1.0, 1.0, 0.0, 0.0], [4.0, 4.0])
    """

    def __init__(self, run: SamplerRun, threshold: float = 0.05, warmup: int = 5, cooldown: int = 1) -> None:
        super().__init__(run, threshold, warmup, cooldown, _Predicted)

    def answer(self, inputs: list[torch.Tensor], compute: Callable[[], Any], adds: bool = True) -> tuple[Any, float]:
        """The output of a forward pass, and the share of it that was computed: 1 or 0.

        Parameters
        ----------
        inputs
            The tensors that the outputs belong to, in the order of the outputs.
        compute
            Runs the model; what it returns may be a tensor, or hold several. Plain dictionaries in it, of keys and
            values that it was given, are handed on as they are.
        adds
            Whether a reused step adds to its inputs what the last computed one added (default), or has its outputs.
        """
        self.begin()
        if self.leads:
            self._predict(inputs)
        bases = iter(inputs if adds else [])
        if self.skips:
            residuals = self.state.residual
            return map_tensors(lambda residual: plus(residual, _base(residual, bases)), residuals, skip=dict), 0.0
        output = compute()
        self.computed(map_tensors(lambda x: plus(x, _base(x, bases), -1), output, skip=dict))
        if self.leads:
            self.state.measure(inputs, [x.clone() for x in predicted(output)])
        return output, 1.0

    def _predict(self, inputs: list[torch.Tensor]) -> None:
        """Add up the predicted change of this step, and decide."""
        state = self.state
        seen, state.seen = state.seen, [x.clone() for x in inputs]
        if self.may_reuse and state.ratio is not None:
            state.error += state.predict(inputs, seen)
            self.decide(state.error)


def _base(output: torch.Tensor, bases: Iterator[torch.Tensor]) -> torch.Tensor | None:
    """The input of an output `[B, S, C]`; None where it has another number of tokens: which are its is not known."""
    base = next(bases, None)
    differs = base is not None and base.ndim == output.ndim == 3 and base.shape[1] != output.shape[1]
    return None if differs else base
