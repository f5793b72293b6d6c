"""A choice between ways of computing: taken from what is kept for this CPU, or measured and then kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmaccel.files import kept_choices

TRIES = 5  # processes that measure in vain before none tries any more


def kept_or_measured(name: str, measure: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
    """What is kept under a name for this CPU, this number of threads and this torch, else what is measured now.

    A verdict of a quiet moment is kept in the user's cache folder, and later processes take it from there. One of a
    busy moment is not: only that it was tried in vain is noted, and after some tries no process measures any more,
    until `mmaccel env --forget`.

    Parameters
    ----------
    measure
        Gives the choice, as JSON holds it, or None where the machine was too busy to tell.
    fits
        Whether a kept choice is one: the file may have been changed by anybody.

    Returns
    -------
    The choice, or None where there is none.
    """
    at = kept_choices.place(torch.get_num_threads())
    kept = kept_choices.read().get(at, {}).get(name)
    if fits(kept):
        return kept
    if _tried(kept) >= TRIES:
        return None
    found = measure()
    if found is None:
        kept = kept_choices.read().get(at, {}).get(name)
        if fits(kept):  # another process was luckier in the meantime
            return kept
    kept_choices.keep(at, name, {"tried": _tried(kept) + 1} if found is None else found)
    return found


def _tried(kept: Any) -> int:
    tried = kept.get("tried") if isinstance(kept, dict) else 0
    return tried if isinstance(tried, int) else 0
