"""Sizes of blocks for synthesis that plays while it is generated."""

from __future__ import annotations

from collections.abc import Iterator

from mmaccel.errors import SettingError
from mmaccel.method import is_count


def growing_blocks(first: int = 1, factor: int = 2, largest: int = 8) -> Iterator[int]:
    """Sizes of blocks in frames that start small, for an early first sound, and grow, for less work; endless.

    Parameters
    ----------
    first
        Size of the first block, default 1.
    factor
        How much larger the next one is, default 2; 1 for blocks of one size.
    largest
        Where growth ends, default 8: 0.64 s of Mimi.

    Raises
    ------
    SettingError
        If one is not an integer of at least 1, or `first` is above `largest`.

    Examples
    --------
    >>> from itertools import islice
    >>> list(islice(growing_blocks(1, 2, 8), 6))
    [1, 2, 4, 8, 8, 8]
    """
    for name, value in (("first", first), ("factor", factor), ("largest", largest)):
        if not is_count(value):
            raise SettingError(f"growing_blocks({name}={value!r}): {name} must be an integer of at least 1")
    if first > largest:
        raise SettingError(f"growing_blocks(first={first}, largest={largest}): first must be at most largest")
    return _grow(first, factor, largest)


def _grow(size: int, factor: int, largest: int) -> Iterator[int]:
    while True:
        yield size
        size = min(size * factor, largest)
