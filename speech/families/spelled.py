"""Words of tokens that have times each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..stream.units import is_unspaced, letters, units
from .adapter import Word

WORD_STARTS = ("Ġ", "▁", " ")  # how byte-level, SentencePiece and Mistral's tokens say that a space comes before
LOST = "\ufffd"  # what part of a character's bytes is decoded to
Decode = Callable[[Sequence[int]], str]  # tokens to their text


def words_of(
    decode: Decode, tokenizer: Any, tokens: Sequence[int], starts: Sequence[float], ends: Sequence[float]
) -> list[Word]:
    """The words of tokens of which each has its time.

    Parameters
    ----------
    decode
        Makes a text of tokens, as :meth:`SpeechAdapter.text`.
    tokenizer
        Its names of tokens say where words begin; in scripts without spaces each character does.
    tokens
        Without marks.
    starts, ends
        Seconds of each token.
    """
    spans = word_spans(decode, tokenizer, tokens) if len(tokens) else []
    made = (_word(decode, tokens, starts, ends, first, last) for first, last in spans)
    return [word for word in made if word is not None]


def word_spans(decode: Decode, tokenizer: Any, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """First token of each word, and the one after its last."""
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(tokens))]
    between = getattr(tokenizer, "word_delimiter_token", None)  # of letters, such as Wav2Vec2's
    begun = {
        place
        for place, name in enumerate(names)
        if place == 0 or name.startswith(WORD_STARTS) or (between is not None and names[place - 1] == between)
    }
    if is_unspaced(decode(tokens)):
        begun.update(_unspaced_starts(decode, tokens))
    starts = sorted(begun)
    return list(zip(starts, [*starts[1:], len(tokens)], strict=True))


def _unspaced_starts(decode: Decode, tokens: Sequence[int]) -> Iterator[int]:
    """Tokens that begin a unit, of which no name tells it; those that hold the bytes of one character are as one."""
    before, start = "", 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[start:end])
        if text.endswith(LOST):
            continue
        if len(units(before + text)) > len(units(before)):
            yield start
        before, start = text, end


def _word(
    decode: Decode, tokens: Sequence[int], starts: Sequence[float], ends: Sequence[float], first: int, last: int
) -> Word | None:
    """A word ends where its punctuation begins, since a pause follows that."""
    text = decode(tokens[first:last])
    if not text:
        return None
    end = last
    while end > first + 1 and letters(decode(tokens[first : end - 1])) == letters(text):
        end -= 1
    return Word(text, starts[first], ends[end - 1])


def spread(text: str, seconds: float) -> list[Word]:
    """The words of a text, spread over so many seconds by their letters, where a model tells no times.

    Examples
    --------
    >>> [(word.text, word.end) for word in spread("so long", 7.0)]
    [('so', 2.0), ('long', 7.0)]
    """
    end, found = 0, []
    total = max(len(text.strip()), 1)
    for unit in units(text):
        word = unit.strip()
        end += len(unit)
        found.append(Word(word, (end - len(word)) * seconds / total, end * seconds / total))
    return found
