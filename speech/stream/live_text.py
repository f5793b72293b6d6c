"""Show a stream on a terminal or in a pipe: words as they become stable."""

from __future__ import annotations

import os
import shutil
from itertools import takewhile
from typing import TextIO

from .events import Eager, Event, Final, Partial
from .units import columns, covered, plain, units

CLEAR, DIM, PLAIN = "\r\x1b[2K", "\x1b[2m", "\x1b[0m"


class LiveText:
    """Writes events as they come, one line for each segment.

    On a terminal the current line is redrawn, with unstable words in grey until the speaker seems to have ended. In a
    pipe words are only ever added; if the final of a segment corrects some, it follows on its own line after ``= ``.

    Examples
    --------
    >>> import sys
    >>> live = LiveText(sys.stdout)
    >>> live.show([Partial("try", " again fell", "try"), Final("try again.", (), 0.0, 1.0)])
    try again.
    """

    def __init__(self, out: TextIO, width: int | None = None) -> None:
        self.out = out
        self.redraws = out.isatty() and os.environ.get("TERM") != "dumb"  # which would show the codes themselves
        self._width = width
        self._shown = ""

    @property
    def width(self) -> int:
        """Columns of a line: people make windows narrower while they speak."""
        return self._width or shutil.get_terminal_size().columns

    def show(self, events: list[Event]) -> None:
        """Write these events."""
        for event in events:
            if isinstance(event, Partial):
                self._redraw(event.stable, event.unstable) if self.redraws else self._add(event)
            elif isinstance(event, Eager) and self.redraws:
                self._redraw(event.text, "")
            elif isinstance(event, Final):
                self.out.write(f"{CLEAR}{event.text}\n" if self.redraws else self._end(event))
                self._shown = ""
        self.out.flush()

    def _redraw(self, stable: str, unstable: str) -> None:
        """The end of the line, as far as it fits."""
        unstable, room = _fitting(unstable, self.width - 1)
        stable, _ = _fitting(stable, room)
        self.out.write(f"{CLEAR}{stable}{DIM}{unstable}{PLAIN}")

    def _add(self, partial: Partial) -> None:
        self.out.write(partial.stable[len(self._shown) :])
        self._shown = partial.stable

    def _end(self, final: Final) -> str:
        shown, said = units(self._shown), units(final.text)
        rest = "".join(said[covered(shown, said) :])
        rest = rest if shown else rest.lstrip()
        kept = list(map(plain, units(self._shown + rest))) == list(map(plain, said))
        return f"{rest}\n" if kept else f"{rest}\n= {final.text}\n"


def _fitting(text: str, room: int) -> tuple[str, int]:
    """The end of a text that fits into so many columns, and how many are left; most Chinese characters take two."""
    for place in range(len(text), 0, -1):
        needed = columns(text[place - 1])
        if needed > room:
            marks = takewhile(lambda letter: not columns(letter), text[place:])  # whose letter is cut off
            return text[place + sum(1 for _ in marks) :], 0
        room -= needed
    return text, room
