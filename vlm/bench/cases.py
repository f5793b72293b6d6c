"""Who runs in the benchmark of video questions: the plain model, fewer frames, and every method at each share."""

from __future__ import annotations

import dataclasses
from typing import Any

from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.registry import methods

from ..pruning.compressor import Compressor

SHARES = (0.25, 0.2, 0.15, 0.1)
FAMILY = "llava_onevision"
# Settings that suit this model better than the paper's, beside those: its tower finds all of a slow clip alike.
TUNED: dict[str, dict[str, Any]] = {"vlm.HoliTom": {"tau": 0.9}, "vlm.EarlyTom": {"window": 16}}


def cases(model: Any, shares: tuple[float, ...] = SHARES) -> list[Entry]:
    """The plain model, fewer frames, and every method, at each share of the tokens."""
    found = [Entry(PLAIN, PLAIN, columns={"share": 1.0})]
    for share in shares:
        found.append(fewer_frames(share))
        for method in compressors(share):
            found.append(Entry.of(model, method, share=share))
            if more := TUNED.get(method.name):
                found.append(Entry.of(model, dataclasses.replace(method, **more), share=share))
    return found


def fewer_frames(share: float) -> Entry:
    """The plain model on every n-th frame."""
    return Entry("fewer frames", "simple", fewer=round(1 / share), columns={"share": share})


def compressors(share: float) -> list[Compressor]:
    """Every method that leaves this family so much of its visual tokens."""
    found = [cls for cls in methods().values() if issubclass(cls, Compressor) and FAMILY in (cls.families or ())]
    return [cls(keep=share) for cls in found]  # type: ignore[call-arg]
