"""A choice between ways of computing: taken from what is kept for this CPU, or measured and then kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mmaccel.files import kept_choices

from .timing import fastest

TIE = 1.05  # times of the fastest way; the usual one stays where nothing is clearly faster
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


def kept_way(
    name: str,
    ways: Mapping[str, Callable[..., Any]],
    calls: Callable[[], Sequence[tuple[Any, ...]]],
    rounding: float,
) -> str:
    """Name of the fastest of the ways that give what the usual one gives, kept for this CPU under a name.

    Parameters
    ----------
    ways
        Functions of equal arguments and results, by name; the usual one first, which it is where the machine is too
        busy to tell.
    calls
        Gives the arguments, a tensor first, that each way is called with in turn; only called to measure.
    rounding
        By how much results may differ, relative and absolute.
    """
    measure = functools.partial(_fastest_way, ways, calls, rounding)
    found = kept_or_measured(name, measure, lambda kept: isinstance(kept, str) and kept in ways)
    return next(iter(ways)) if found is None else str(found)


@torch.inference_mode(False)
@torch.no_grad()
def _fastest_way(
    ways: Mapping[str, Callable[..., Any]], calls: Callable[[], Sequence[tuple[Any, ...]]], rounding: float
) -> str | None:
    """None where the machine is too busy to tell."""
    arguments = calls()
    expected = next(iter(ways.values()))(*arguments[0])
    names = [name for name, way in ways.items() if _agrees(way, arguments[0], expected, rounding)]
    timing = fastest([functools.partial(_call_all, ways[name], arguments) for name in names], arguments[0][0].device)
    if not timing.quiet:
        return None
    return next(name for name, taken in zip(names, timing.seconds, strict=True) if taken <= TIE * min(timing.seconds))


def _call_all(way: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    for arguments in calls:
        way(*arguments)


def _agrees(way: Callable[..., Any], arguments: tuple[Any, ...], expected: Any, rounding: float) -> bool:
    """Whether this torch can compute it so: some ways are private to it, and do not promise to stay."""
    try:
        found = way(*arguments)
    except (RuntimeError, TypeError):
        return False
    pairs = [(found, expected)] if isinstance(expected, torch.Tensor) else zip(found, expected, strict=True)
    return all(torch.allclose(one, other, rtol=rounding, atol=rounding) for one, other in pairs)


def _tried(kept: Any) -> int:
    tried = kept.get("tried") if isinstance(kept, dict) else 0
    return tried if isinstance(tried, int) else 0
