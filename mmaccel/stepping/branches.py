"""Which guidance branch a pass is of, where the passes of a step are not always the same ones."""

from __future__ import annotations

import torch
from torch import Tensor

# More forward passes than a step of any pipeline makes: so many say that the pipeline steps another sampler.
MOST_BRANCHES = 8


class Branches:
    """Numbers the passes of a step so that a number means the same conditions in every step.

    They are numbered in their order, the first 0. Guidance that begins or ends leaves passes out, so that the next one
    comes in their place, such as one with skipped layers in that without the prompt: it is known by its text.

    Examples
    --------
    >>> branches, prompt, none = Branches(), torch.ones(3), torch.zeros(3)
    >>> [branches.next(0, text, is_first=text is texts[0]) for texts in ([prompt, none],) for text in texts]
    [0, 1]
    >>> branches.next(0, prompt, is_first=True), branches.next(0, none), branches.next(0, prompt)
    (0, 1, 2)
    >>> branches.next(0, prompt, is_first=True), branches.next(0, prompt)
    (0, 2)
    """

    def __init__(self) -> None:
        self._texts: dict[int, dict[int, Tensor]] = {}  # by expert and number
        self._taken: set[int] = set()  # in this step

    @property
    def count(self) -> int:
        """Passes of this step so far."""
        return len(self._taken)

    def next(self, expert: int, text: Tensor | None, is_first: bool = False) -> int:
        """The number of the next pass of a step, by what its text is; by its place alone where there is none."""
        if is_first:
            self._taken = set()
        known, place = self._texts.setdefault(expert, {}), len(self._taken)
        number = place if text is None or not place else self._number(known, text, place)
        self._taken.add(number)
        if text is not None:
            known[number] = text
        return number

    def _number(self, known: dict[int, Tensor], text: Tensor, place: int) -> int:
        """That of an equal text, at its place if it can be; a new one for a new text, as long as there are few."""
        free = [number for number in range(1, MOST_BRANCHES) if number not in self._taken]
        order = sorted(free, key=lambda number: number != place)
        found = next((number for number in order if number in known and _equal(known[number], text)), None)
        if found is None:
            found = next((number for number in order if number not in known), place)
        return found


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.device == other.device and torch.equal(one, other))
