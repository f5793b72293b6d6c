"""Work in a thread of its own, a bounded number of items ahead of whoever takes them."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from queue import Full, Queue
from typing import Any

WAIT = 0.05  # seconds between two looks at whether anyone still wants more


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
    ready: Queue[tuple[Any, BaseException | None]] = Queue(queued)
    stop = threading.Event()
    thread = threading.Thread(target=_draw, args=(iter(items), ready, stop), daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item
    finally:
        stop.set()
        thread.join()


def _draw(items: Iterator[Any], ready: Queue[tuple[Any, BaseException | None]], stop: threading.Event) -> None:
    error: BaseException | None = None
    while error is None and not stop.is_set():
        entry: tuple[Any, BaseException | None]
        try:
            entry = next(items), None
        except BaseException as raised:  # the caller is to hear of it, whatever it is
            entry = None, raised
        error = entry[1]
        _put(entry, ready, stop)


def _put(entry: Any, ready: Queue[tuple[Any, BaseException | None]], stop: threading.Event) -> None:
    while not stop.is_set():
        with suppress(Full):
            ready.put(entry, timeout=WAIT)
            return
