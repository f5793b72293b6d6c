"""What followed the same tokens before: an index of all texts so far, for drafts."""

from __future__ import annotations

from collections.abc import Container, Sequence
from sys import getsizeof

from ..matching import Draft, Verdict

BREAK = -1  # between two texts; no token
BIG = 65_536  # a number that is no constant of Python's
POINTER, ENTRY = 8, 24  # bytes of a reference, and of an entry of a dictionary: a hash, a key and a value


class SuffixIndex:
    """Look up the longest suffix of a text in itself and in earlier texts (SuffixDecoding, Oliaro et al., 2024).

    Tables of n-grams instead of the paper's suffix tree: the same longest match up to `longest` tokens, in memory that
    is bounded.

    Parameters
    ----------
    longest, shortest
        Most and fewest tokens that must match.
    remember
        Tokens of earlier texts to keep, the newest.
    forbidden
        Tokens that are never proposed and that no match reaches across, such as those that stand for pictures.

    Examples
    --------
    >>> index = SuffixIndex(longest=4, shortest=2, remember=100)
    >>> for token in [5, 6, 7, 8, 5, 6]:
    ...     index.add(token)
    >>> index.propose(3).tokens
    (7, 8, 5)
    """

    def __init__(self, longest: int, shortest: int, remember: int, forbidden: Container[int] = ()) -> None:
        self.longest, self.shortest, self.remember, self.forbidden = longest, shortest, remember, forbidden
        self._tokens: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}  # what follows an n-gram: its newest place among all tokens ever
        self._gone = 0  # tokens before those of `_tokens`
        self._empty = 0  # entries that were deleted from `_next`, and whose room it keeps

    def __len__(self) -> int:
        return len(self._tokens)

    def begin(self, tokens: Sequence[int] = ()) -> None:
        """Another text begins, with these tokens; what is too old is forgotten."""
        if self._tokens:
            self.add(BREAK)
        if len(self._tokens) > self.remember:
            self._forget(len(self._tokens) - self.remember)
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """The text goes on with `token`."""
        token = BREAK if token in self.forbidden else token
        place = self._gone + len(self._tokens)
        for suffix in self._suffixes(len(self._tokens)) if token != BREAK else ():
            self._next[suffix] = place
        self._tokens.append(token)

    def observe(self, verdict: Verdict) -> None:
        """The text goes on with what was committed."""
        for token in verdict.tokens:
            self.add(token)

    def propose(self, most: int) -> Draft:
        """What may come next: at most `most` tokens, and at most twice as many as matched."""
        found = self.match()
        return Draft(()) if found is None else Draft(tuple(self._copy(found[0], min(most, 2 * found[1]))))

    def match(self) -> tuple[int, int] | None:
        """The place behind the longest match of the end of this text, and the match's length."""
        for suffix in self._suffixes(len(self._tokens)):
            place = self._next.get(suffix)
            if place is not None:
                return place - self._gone, len(suffix)
        return None

    def token(self, place: int) -> int | None:
        """What stands at a place; None between two texts."""
        found = self._tokens[place]
        return None if found == BREAK else found

    def _forget(self, count: int) -> None:
        """Let the first tokens go, with the n-grams that have some of them or lead to them."""
        if count == len(self._tokens):
            self._tokens, self._next, self._empty, count = [], {}, 0, 0
        for place in range(min(count + self.longest, len(self._tokens))):
            for suffix in self._suffixes(place):
                if place - len(suffix) < count and self._next.get(suffix) == self._gone + place:
                    del self._next[suffix]
                    self._empty += 1
        if 2 * self._empty > len(self._next):
            self._next, self._empty = dict(self._next.items()), 0  # by its items, as a copy keeps the room
        del self._tokens[:count]
        self._gone += count

    def _suffixes(self, place: int) -> list[tuple[int, ...]]:
        """The last tokens of a text before a place, `longest` to `shortest` of them."""
        end = self._tokens[max(0, place - self.longest) : place]
        if BREAK in end:
            end = end[len(end) - end[::-1].index(BREAK) :]
        return [tuple(end[-length:]) for length in range(len(end), self.shortest - 1, -1)]

    def _copy(self, place: int, count: int) -> list[int]:
        """`count` tokens from `place` on; past the end the copy itself goes on, as a text that repeats itself does."""
        tokens: list[int] = []
        for number in range(place, place + count):
            known = number < len(self._tokens)
            token = self._tokens[number] if known else tokens[number - len(self._tokens)]
            if token == BREAK:
                break
            tokens.append(token)
        return tokens


def index_bytes(longest: int, shortest: int, tokens: int) -> int:
    """Bytes of an index of so many tokens at most, none of whose n-grams stands there twice.

    Examples
    --------
    >>> 1000 < index_bytes(longest=8, shortest=1, tokens=1) < index_bytes(longest=8, shortest=1, tokens=2)
    True
    """
    grams = longest - shortest + 1
    keys = grams * (tuple_bytes(longest) + tuple_bytes(shortest)) // 2
    places = grams * getsizeof(BIG)  # that keys lead to
    return tokens * (keys + places + 2 * getsizeof(BIG)) + dict_bytes(2 * tokens * grams + 1)  # that forgets


def tuple_bytes(length: int) -> int:
    """Bytes of a tuple, without what stands in it.

    Examples
    --------
    >>> tuple_bytes(3) == getsizeof((1, 2, 3))
    True
    """
    return getsizeof(()) + POINTER * length


def dict_bytes(entries: int) -> int:
    """Bytes of a dictionary that grew to so many entries, without those: its slots double when two thirds are used.

    Examples
    --------
    >>> dict_bytes(1000) == getsizeof(dict.fromkeys(range(1000)))
    True
    """
    slots = 8
    while slots * 2 // 3 < entries:
        slots *= 2
    place = next((size for size in (1, 2, 4) if slots <= 2 ** (8 * size - 1)), 8)  # of an entry, in each slot
    smallest = 8 + 5 * ENTRY
    return getsizeof({0: 0}) - smallest + slots * place + slots * 2 // 3 * ENTRY
