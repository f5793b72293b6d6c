"""Who runs in the benchmark of video questions: the plain model, fewer frames, and every method at each share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.registry import methods

from ..pruning.compressor import Compressor

SHARES = (0.25, 0.15, 0.1)
STEPS = (2, 4, 7, 10)  # of fewer frames, from one to the next
FAMILY = "llava_onevision"
# Other settings beside the defaults: the tower of this model finds all of a slow clip alike; and the paper's.
OTHERS: dict[str, dict[str, Any]] = {"vlm.HoliTom": {"tau": 0.9}, "vlm.EarlyTom": {"alike": -1.0}}


@dataclass(frozen=True)
class Grid:
    """One table of the benchmark: its clips, and which shares of their tokens are measured.

    Attributes
    ----------
    table
        Column of its rows; one of `page.TITLES`.
    clips
        So many, with four questions each.
    timed
        How many of them are timed, with a question each.
    choice
        Which clips they are, for `zoo.questions`.
    """

    table: str
    clips: int
    timed: int
    shares: tuple[float, ...] = SHARES
    choice: dict[str, Any] = field(default_factory=dict)


BRIEF, LONG = {"brief": True}, {"brief": True, "frames": 64}
QUICK = (Grid("brief", 16, 3, (0.15, 0.1), BRIEF), Grid("slow", 8, 2, (0.15,)))
FULL = (Grid("brief", 60, 12, choice=BRIEF), Grid("slow", 30, 6), Grid("long", 16, 4, (0.15,), LONG))


def cases(model: Any, shares: tuple[float, ...] = SHARES) -> list[Entry]:
    """The plain model, fewer frames, and every method at each share of the tokens."""
    found = [Entry(PLAIN, PLAIN, columns={"share": 1.0}), *map(fewer_frames, STEPS)]
    for share in shares:
        for method in compressors(share):
            found.append(Entry.of(model, method, share=share))
            if more := OTHERS.get(method.name):
                found.append(Entry.of(model, dataclasses.replace(method, **more), share=share))
    return found


def fewer_frames(step: int) -> Entry:
    """The plain model on every n-th frame."""
    return Entry("fewer frames", "simple", fewer=step, columns={"share": 1 / step})


def compressors(share: float) -> list[Compressor]:
    """Every method that leaves this family so much of its visual tokens."""
    found = [cls for cls in methods().values() if issubclass(cls, Compressor) and FAMILY in (cls.families or ())]
    return [cls(keep=share) for cls in found]
