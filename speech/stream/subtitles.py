"""Subtitles of what was said: SRT, WebVTT and JSON, in lines that can be read in time."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from mmaccel.errors import SettingError
from mmaccel.files.output import replacing
from mmaccel.method import Checked, is_count, is_number

from ..families.adapter import Word
from .balanced import balanced
from .events import Final
from .units import behind, columns, ends_sentence, joined_text, unbroken, units

LONGEST_PAUSE = 1.0  # seconds between words of one subtitle


@dataclass(frozen=True)
class Cue:
    """A subtitle: its lines, and from when to when it is shown, in seconds."""

    start: float
    end: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class SubtitleLayout(Checked):
    """How subtitles are cut (defaults: the BBC's and Netflix's guidelines for English, 2024).

    Most characters of Chinese, Japanese and Korean count as two, as they are twice as wide; marks on a letter, such as
    vowels of Thai, do not count. The guidelines for Chinese are a width of 32 and a speed of 18.

    Parameters
    ----------
    width
        Most characters of a line; default 42, which are 21 of Chinese.
    lines
        Most lines of a subtitle; default 2.
    longest, shortest
        Seconds that one is shown; defaults 7 and 1. A short one stays if nothing follows.
    reading_speed
        Characters a second that one can read; default 20. One that is faster stays if nothing follows.

    Raises
    ------
    SettingError
        If a setting is out of range.
    """

    width: int = 42
    lines: int = 2
    longest: float = 7.0
    shortest: float = 1.0
    reading_speed: float = 20.0

    def __post_init__(self) -> None:
        self._require(is_count(self.width, 10, 200), "width", "between 10 and 200 characters, such as 42")
        self._require(is_count(self.lines, 1, 10), "lines", "between 1 and 10, such as 2")
        self._require(is_number(self.longest, 1, 60), "longest", "between 1 and 60 seconds, such as 7.0")
        self._require(is_number(self.shortest, 0, self.longest), "shortest", "between 0 and `longest`, such as 1.0")
        speed = is_number(self.reading_speed, 1, 1000)
        self._require(speed, "reading_speed", "between 1 and 1000 characters, such as 20.0")

    def wrap(self, text: str) -> list[str]:
        """As few lines as hold a text, of about the same length, the last of more than one word if that is possible."""
        parts = self._parts(text)

        def line(start: int, end: int) -> str:
            return "".join(parts[start:end]).strip()

        spans = balanced(
            len(parts), lambda start, end: columns(line(start, end)) <= self.width, lambda *span: columns(line(*span))
        )
        return [line(*span) for span in spans]

    def fits(self, text: str) -> bool:
        """Whether a text is no more than one subtitle."""
        needed = filled = 0
        for part in self._parts(text):
            if needed and filled + columns(part) <= self.width:
                filled += columns(part)
            else:
                needed, filled = needed + 1, columns(part.strip())
        return needed <= self.lines

    def _parts(self, text: str) -> list[str]:
        """What lines are made of: words with the space before, characters of scripts without spaces, and words that
        are longer than a line in pieces."""
        found, said = [], units(" ".join(text.split()))
        for unit in ("".join(said[slice(*span)]) for span in unbroken(said)):
            space = unit[: len(unit) - len(unit.lstrip())]
            pieces = _pieces(unit.strip(), self.width)
            found += [space + pieces[0], *pieces[1:]]
        return found


def _pieces(word: str, width: int) -> list[str]:
    """A word in pieces of as many columns, where it is longer than a line."""
    found = [""]
    for letter in word:
        if columns(found[-1] + letter) > width:
            found.append("")
        found[-1] += letter
    return found


def cues(segments: Iterable[Final], layout: SubtitleLayout | None = None) -> list[Cue]:
    """Cut finals into subtitles: at the ends of sentences, at pauses, and where they would be too long.

    What is too long for one is cut into as few as can be, of about the same length; none holds only the last word of a
    sentence if that is possible.

    Examples
    --------
    >>> words = tuple(Word(text, at, at + 0.5) for at, text in enumerate(("Try", "again.", "Fail", "again.")))
    >>> [cue.lines for cue in cues([Final("Try again. Fail again.", words, 0.0, 4.0)], SubtitleLayout(width=10))]
    [('Try again.',), ('Fail', 'again.')]
    """
    layout = layout or SubtitleLayout()
    groups = [group for segment in segments for group in _groups(_with_marks(_spaced(segment)), layout)]
    made = [Cue(group[0].start, group[-1].end, tuple(layout.wrap(_join(group)))) for group in groups]
    starts = [*(cue.start for cue in made), math.inf]
    return [_in_time(cue, following, layout) for cue, following in zip(made, starts[1:], strict=False)]


def _in_time(cue: Cue, following: float, layout: SubtitleLayout) -> Cue:
    """Shown for as long as reading takes, as far as the next one allows."""
    needed = max(layout.shortest, sum(map(columns, cue.lines)) / layout.reading_speed)
    end = max(cue.end, cue.start + min(needed, layout.longest))
    return replace(cue, end=max(min(end, following), cue.start))


def _spaced(segment: Final) -> list[Word]:
    """The words with the spaces before them; spread over the segment where the model gave no times."""
    texts = units(segment.text)
    if not segment.words:
        length = (segment.end - segment.start) / max(len(texts), 1)
        return [
            Word(text, segment.start + place * length, segment.start + (place + 1) * length)
            for place, text in enumerate(texts)
        ]
    if len(texts) != len(segment.words):
        texts = [behind(*pair) for pair in pairwise(["", *(word.text.strip() for word in segment.words)])]
    return [replace(word, text=text) for word, text in zip(segment.words, texts, strict=True)]


def _with_marks(words: Sequence[Word]) -> list[Word]:
    """Words together with marks that stand apart from them, and must not begin a line."""
    parts = [words[slice(*span)] for span in unbroken([word.text for word in words])]
    return [Word("".join(word.text for word in part), part[0].start, part[-1].end) for part in parts]


def _join(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words).strip()


def _groups(words: Sequence[Word], layout: SubtitleLayout) -> list[list[Word]]:
    """The words of each subtitle."""
    return [group for passage in _passages(words, layout) for group in _balanced_groups(passage, layout)]


def _passages(words: Sequence[Word], layout: SubtitleLayout) -> list[list[Word]]:
    """Sentences, and what pauses part; sentences shorter than half a line stay with the next."""
    passages: list[list[Word]] = []
    text = ""
    for word in words:
        sentence = ends_sentence(text) and columns(text) >= layout.width / 2
        if not passages or sentence or word.start - passages[-1][-1].end > LONGEST_PAUSE:
            passages.append([])
            text = ""
        passages[-1].append(word)
        text = (text + word.text).strip()
    return passages


def _balanced_groups(words: list[Word], layout: SubtitleLayout) -> list[list[Word]]:
    """As few parts of a passage as fit into subtitles, of about the same length."""

    def fits(start: int, end: int) -> bool:
        in_time = words[end - 1].end - words[start].start <= layout.longest
        return in_time and layout.fits(_join(words[start:end]))

    spans = balanced(len(words), fits, lambda start, end: columns(_join(words[start:end])))
    return [words[start:end] for start, end in spans]


def to_srt(shown: Iterable[Cue]) -> str:
    """SubRip; it has no escapes, so that an arrow in a text is written ``->``."""
    blocks = (
        f"{number}\n{_time(cue.start, ',')} --> {_time(cue.end, ',')}\n"
        + "".join(f"{line.replace('-->', '->')}\n" for line in cue.lines)
        for number, cue in enumerate(shown, 1)
    )
    return "\n".join(blocks)


def to_vtt(shown: Iterable[Cue]) -> str:
    """WebVTT, with ``&``, ``<`` and ``>`` escaped."""
    blocks = (
        f"{_time(cue.start, '.')} --> {_time(cue.end, '.')}\n"
        + "".join(f"{html.escape(line, quote=False)}\n" for line in cue.lines)
        for cue in shown
    )
    return "\n".join(("WEBVTT\n", *blocks))


def _time(seconds: float, point: str) -> str:
    milliseconds = round(max(seconds, 0.0) * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"


def to_json(segments: Iterable[Final]) -> str:
    """Text, segments and words with times in seconds."""
    listed = list(segments)
    made: dict[str, Any] = {
        "text": joined_text(segment.text for segment in listed),
        "segments": [_listed(segment) for segment in listed],
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _listed(segment: Final) -> dict[str, Any]:
    words = [{"text": word.text, "start": round(word.start, 3), "end": round(word.end, 3)} for word in segment.words]
    spoken = {"language": segment.language} if segment.language else {}
    return {
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        **spoken,
        "words": words,
    }


FORMATS: dict[str, Callable[[list[Final], SubtitleLayout | None], str]] = {
    ".srt": lambda segments, layout: to_srt(cues(segments, layout)),
    ".vtt": lambda segments, layout: to_vtt(cues(segments, layout)),
    ".json": lambda segments, layout: to_json(segments),
}


def check_format(path: Path | str) -> str:
    """The suffix of a subtitle file; `SettingError` if it is none that can be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise SettingError(f"cannot write {str(path)!r}: end it with {', '.join(FORMATS)}, such as talk.srt")
    return suffix


def write_subtitles(path: Path | str, segments: Iterable[Final], layout: SubtitleLayout | None = None) -> None:
    """Write finals as subtitles; the file's ending says how: .srt, .vtt or .json.

    Raises
    ------
    SettingError
        If the ending is another.

    Examples
    --------
    >>> write_subtitles("talk.srt", transcript.segments)  # doctest: +SKIP
    """
    text = FORMATS[check_format(path)](list(segments), layout)
    with replacing(Path(path)) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")
