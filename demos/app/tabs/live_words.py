"""What one stream of speech has said so far, for the page: lines with times, and the one that is spoken."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from mmaccel.speech import Event, Final, Partial, write_subtitles
from mmaccel.speech.stream.subtitles import FORMATS
from mmaccel.speech.stream.units import joined_text

LISTENING, SILENT = "Listening: speak now.", "No speech was heard."
NOTHING = "Words appear here while they are spoken."
MOST_LINES = 200  # that a page shows; all are in the files


class LiveWords:
    """Takes in the events of a stream.

    Examples
    --------
    >>> words = LiveWords()
    >>> words.take([Final("Try again.", (), 0.0, 1.5)])
    >>> "Try again." in words.page(over=True)
    True
    """

    def __init__(self) -> None:
        self.finals: list[Final] = []
        self.partial: Partial | None = None

    def take(self, events: Sequence[Event]) -> None:
        """Remember what these events tell."""
        for event in events:
            if isinstance(event, Partial):
                self.partial = event
            elif isinstance(event, Final):
                self.partial = None
                self.finals += [event] if event.text else []

    @property
    def text(self) -> str:
        """All finals."""
        return joined_text(final.text for final in self.finals)

    def page(self, over: bool = False) -> str:
        """HTML: finals with their times, then the words that stay, and in grey those that may still change."""
        lines = [_line(_time(final.start), html.escape(final.text)) for final in self.finals[-MOST_LINES:]]
        if self.partial is not None and not over:
            stable, unstable = html.escape(self.partial.stable), html.escape(self.partial.unstable)
            lines.append(_line("now", f'<span class="stable">{stable}</span><span class="unstable">{unstable}</span>'))
        return page("".join(lines) or remark(SILENT if over else LISTENING))

    def save(self, folder: Path) -> list[str]:
        """Write the finals as subtitles in every format; returns the files, none where nothing was said."""
        files = [folder / f"speech{ending}" for ending in FORMATS] if self.finals else []
        for file in files:
            write_subtitles(file, self.finals)
        return [str(file) for file in files]


def page(inside: str = "") -> str:
    """The place for the words, which screen readers follow."""
    return f'<div class="words" role="log" aria-live="polite">{inside or remark(NOTHING)}</div>'


def _line(time: str, words: str) -> str:
    return f'<p><span class="time">{time}</span> {words}</p>'


def remark(text: str) -> str:
    """What is said to the visitor instead of words."""
    return f'<p class="remark">{text}</p>'


def _time(seconds: float) -> str:
    """Minutes and seconds.

    Examples
    --------
    >>> _time(75.4)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
