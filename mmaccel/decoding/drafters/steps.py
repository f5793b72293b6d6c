"""Steps that drafters wait for, taken at once for the texts of a batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .heads.steps import HeadStep, HeadSteps

T = TypeVar("T")
Waiting = Generator["HeadStep", None, T]


def together(drafting: Sequence[Waiting[T]]) -> list[T]:
    """Run to their ends what waits for steps now and then; steps waited for at the same time are taken together.

    Examples
    --------
    >>> class Doubles:
    ...     def take(self, steps):
    ...         print(len(steps), "at once")
    >>> class Asked:
    ...     stepper = Doubles()
    >>> def draft(steps):
    ...     for _ in range(steps):
    ...         yield Asked()
    ...     return steps
    >>> together([draft(2), draft(0), draft(1)])
    2 at once
    1 at once
    [2, 0, 1]
    """
    found: dict[int, T] = {}
    while len(found) < len(drafting):
        waiting: dict[HeadSteps, list[HeadStep]] = {}
        for number, each in enumerate(drafting):
            if number in found:
                continue
            try:
                step = next(each)
            except StopIteration as end:
                found[number] = end.value
            else:
                waiting.setdefault(step.stepper, []).append(step)
        for stepper, steps in waiting.items():
            stepper.take(steps)
    return [found[number] for number in range(len(drafting))]
