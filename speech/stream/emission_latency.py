"""Latency of a recogniser's words: PR50, PR90 and the delay of each word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mmaccel.errors import SettingError

from ..families.adapter import Word
from .stats import quantile
from .units import covered, letters

Normalize = Callable[[str], str]


@dataclass(frozen=True)
class Emission:
    """A word of the final text, and when it was first shown for good.

    Attributes
    ----------
    text
        The word.
    at
        Seconds from the start of the audio. On the clock of the audio, how much had been given when the word came;
        on that of a listener, with the time of computing added.
    """

    text: str
    at: float


@dataclass(frozen=True)
class Utterance:
    """What was said and what was shown.

    Attributes
    ----------
    emissions
        The words that were shown, in order.
    reference
        The words that were said, with times, such as from a forced alignment.
    speech_end
        Seconds at which the speaker stopped; default the end of the last word.
    eager
        Seconds at which the final text was told early, such as by :class:`~mmaccel.speech.Eager`; None if it was not.
    """

    emissions: Sequence[Emission]
    reference: Sequence[Word]
    speech_end: float | None = None
    eager: float | None = None


@dataclass(frozen=True)
class EmissionLatency:
    """Latencies in seconds over a set of utterances; a negative one means before the word was over.

    Attributes
    ----------
    pr50, pr90
        Percentiles over utterances of the partial recognition latency (FastEmit, 2021): from the end of the speech to
        the last word of the final text. None if no utterance has both.
    delay50, delay90, delay_mean
        The same over words, from the end of a word to its emission. None if none was recognised.
    matched, words
        Recognised words, and all spoken words.
    silent
        Utterances with speech for which nothing was shown; they have no partial recognition latency.
    utterances
        Number of utterances.
    eager50, eager90
        From the end of the speech to the final text told early. None if no text was.
    """

    pr50: float | None
    pr90: float | None
    delay50: float | None
    delay90: float | None
    delay_mean: float | None
    matched: int
    words: int
    silent: int
    utterances: int
    eager50: float | None = None
    eager90: float | None = None

    def __str__(self) -> str:
        early = "" if self.eager50 is None else f" (told early {_ms(self.eager50)}, {_ms(self.eager90)})"
        return (
            f"PR50 {_ms(self.pr50)}, PR90 {_ms(self.pr90)}{early}, word delay {_ms(self.delay_mean)} on average,"
            f" {self.matched} of {self.words} words in {self.utterances} utterances"
        )


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms"


def plain(word: str) -> str:
    """A word in small letters, without punctuation but apostrophes within."""
    return letters(word, kept="'").strip("'")


def emission_latency(utterances: Iterable[Utterance], normalize: Normalize = plain) -> EmissionLatency:
    """Latency of any recogniser that says when it showed which word.

    Parameters
    ----------
    utterances
        What was said and shown.
    normalize
        Makes words comparable; words that it leaves empty are not counted. Default :func:`plain`.

    Examples
    --------
    >>> said = [Word("hello", 0.1, 0.5), Word("world", 0.6, 1.0)]
    >>> shown = [Emission("Hello", 0.7), Emission("world.", 1.3)]
    >>> print(emission_latency([Utterance(shown, said)]))
    PR50 300 ms, PR90 300 ms, word delay 250 ms on average, 2 of 2 words in 1 utterances
    """
    utterances = list(utterances)
    last = [partial_recognition_latency(utterance) for utterance in utterances]
    delays = [delay for utterance in utterances for delay in word_delays(utterance, normalize)]
    matched = [delay for delay in delays if delay is not None]
    known = [latency for latency in last if latency is not None]
    ends = [(utterance.eager, _speech_end(utterance)) for utterance in utterances]
    eager = [told - end for told, end in ends if told is not None and end is not None]
    return EmissionLatency(
        pr50=quantile(known, 0.5),
        pr90=quantile(known, 0.9),
        delay50=quantile(matched, 0.5),
        delay90=quantile(matched, 0.9),
        delay_mean=float(np.mean(matched)) if matched else None,
        matched=len(matched),
        words=len(delays),
        silent=sum(bool(utterance.reference) and not utterance.emissions for utterance in utterances),
        utterances=len(utterances),
        eager50=quantile(eager, 0.5),
        eager90=quantile(eager, 0.9),
    )


def partial_recognition_latency(utterance: Utterance) -> float | None:
    """From the end of the speech to the last emission, right or wrong; None if one of the two is missing."""
    end = _speech_end(utterance)
    return None if end is None or not utterance.emissions else utterance.emissions[-1].at - end


def _speech_end(utterance: Utterance) -> float | None:
    if utterance.speech_end is None and utterance.reference:
        return max(word.end for word in utterance.reference)
    return utterance.speech_end


def word_delays(utterance: Utterance, normalize: Normalize = plain) -> list[float | None]:
    """From the end of each word said to its emission, None for words that were missed or taken for another."""
    said = [(text, word.end) for word in utterance.reference if (text := normalize(word.text))]
    shown = [(text, emission.at) for emission in utterance.emissions if (text := normalize(emission.text))]
    pairs = dict(_matches([text for text, _ in said], [text for text, _ in shown]))
    return [shown[pairs[i]][1] - end if i in pairs else None for i, (_, end) in enumerate(said)]


def _matches(said: list[str], shown: list[str]) -> list[tuple[int, int]]:
    """Places of equal words in an alignment of fewest edits, the same that counts word errors."""
    rows, columns = len(said), len(shown)
    cost = np.zeros((rows + 1, columns + 1), dtype=np.int64)
    cost[:, 0], cost[0, :] = np.arange(rows + 1), np.arange(columns + 1)
    for i in range(rows):
        for j in range(columns):
            swap = cost[i, j] + (said[i] != shown[j])
            cost[i + 1, j + 1] = min(swap, cost[i, j + 1] + 1, cost[i + 1, j] + 1)
    found: list[tuple[int, int]] = []
    i, j = rows, columns
    while i and j:
        if cost[i, j] == cost[i - 1, j - 1] + (said[i - 1] != shown[j - 1]):
            i, j = i - 1, j - 1
            found += [(i, j)] if said[i] == shown[j] else []
        elif cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def emissions_of(
    partials: Iterable[tuple[float, Sequence[str]]], normalize: Normalize = plain, alone: bool = False
) -> list[Emission]:
    """When each word of the final text was first shown for good, of a recogniser that takes words back.

    A word counts from the first partial after which it did not change, and no word before it.

    Parameters
    ----------
    partials
        Seconds and all words shown then, in order of time; the last is the final text.
    normalize
        What is left of a word must change for the word to have changed.
    alone
        Whether a word counts from when it was there, also where a word before it was corrected later; default False. By
        an alignment of each partial with what it stands for of the final text.

    Raises
    ------
    SettingError
        If time runs backwards.

    Examples
    --------
    >>> partials = [(0.5, ["a"]), (1.0, ["a", "cat"]), (1.5, ["The", "cat", "sat"])]
    >>> [emission.at for emission in emissions_of(partials)]
    [1.5, 1.5, 1.5]
    >>> [emission.at for emission in emissions_of(partials, alone=True)]
    [1.5, 1.0, 1.5]
    """
    history = [(at, list(words)) for at, words in partials]
    if not history:
        return []
    if any(later < earlier for (earlier, _), (later, _) in zip(history, history[1:], strict=False)):
        raise SettingError("partials must be in the order of their time: sort them by it")
    final = history[-1][1]
    at, stays = [history[-1][0]] * len(final), set(range(len(final)))
    for time, words in reversed(history):
        first = _common(final, words, normalize)
        stays &= {*range(first), *(_behind(final, words, first, normalize) if alone else ())}
        for place in stays:
            at[place] = time
    return [Emission(text, seconds) for text, seconds in zip(final, at, strict=True)]


def _common(final: list[str], words: list[str], normalize: Normalize) -> int:
    """Length of the common prefix."""
    for i, (one, two) in enumerate(zip(final, words, strict=False)):
        if normalize(one) != normalize(two):
            return i
    return min(len(final), len(words))


def _behind(final: list[str], words: list[str], first: int, normalize: Normalize) -> list[int]:
    """Places of `final` that `words` have too, behind the `first` ones, which are equal."""
    known = words[first:]
    ahead = final[first : first + 2 * len(known) + 8]  # the rest was not spoken yet
    ahead = ahead[: covered(known, ahead)]
    pairs = _matches([normalize(word) for word in ahead], [normalize(word) for word in known])
    return [first + place for place, _ in pairs]
