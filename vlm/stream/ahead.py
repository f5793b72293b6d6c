"""Work in a thread of its own, a bounded number of items ahead of whoever takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mmaccel.machine import with_autocast

END = object()


def ahead(items: Iterable[Any], queued: int = 2) -> Generator[Any, None, None]:
    """What an iterator gives, drawn from it in a thread while the caller works on what it has.

    Parameters
    ----------
    items
        Used by that thread alone until this generator is closed, which waits for the item at hand.
    queued
        Most items that wait; the thread pauses then.

    Raises
    ------
    BaseException
        What drawing an item raised, after those before it.

    Examples
    --------
    >>> list(ahead(range(3)))
    [0, 1, 2]
    """
    source = (item for item in items)  # a generator, which is at its end once it has raised: nothing is drawn after
    pool, draw = ThreadPoolExecutor(1), with_autocast(next)
    try:
        drawn = deque(pool.submit(draw, source, END) for _ in range(queued + 1))
        while (item := drawn.popleft().result()) is not END:
            drawn.append(pool.submit(draw, source, END))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
