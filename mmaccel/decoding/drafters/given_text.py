"""Guesses from a text that is given: a page as a lighter reader has it, an older version of an answer."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Sequence

from ..matching import Likely
from .sources import Context, Guess, State

BREAK = -1  # between two texts; no token
LONGEST_SUFFIX = 4
REACH = 8  # a match of one token counts this near to where it was expected
RUNS = {1: 0.7, 2: 0.8, 3: 0.85, 4: 0.9, 8: 0.95, 16: 0.97}  # share of right guesses by equal tokens before
LOST = {"start": 0.7, "found": 0.6, "next": 0.4, "same": 0.2}  # and where there are none
EXPECTED: dict[Hashable, float] = {("given", how): share for how, share in (*RUNS.items(), *LOST.items())}


class GivenText:
    """Follow texts in their order, and realign after what was changed, inserted or left out.

    After a token that is not as given, what follows the nearest of the longest equal suffixes is guessed, that one
    token stands for another, and that one was inserted (as in Aggressive Decoding, Ge et al., 2022, with alternatives).

    Parameters
    ----------
    texts
        Token ids of each.
    forbidden
        Tokens that are never proposed.

    Attributes
    ----------
    followed
        Tokens that were written as given.

    Examples
    --------
    >>> source = GivenText([[5, 6, 7, 8]])
    >>> source.learn([5, 9], ends=(), likely=())
    >>> [token for token, kind, state in source.guesses(source.root())]
    [7, 6]
    """

    def __init__(self, texts: Sequence[Sequence[int]], forbidden: Container[int] = ()) -> None:
        self.tokens = [BREAK if token in forbidden else token for text in texts for token in (*text, BREAK)]
        self._ends: dict[int, list[int]] = {}  # places behind each token
        for place, token in enumerate(self.tokens):
            self._ends.setdefault(token, []).append(place + 1)
        self.followed = 0
        self._written: list[int] = []
        self._at, self._run = 0, 0  # the place that is expected to come next, and the equal tokens before it
        self._places: list[tuple[int, int | str]] = [(0, "start")]  # of guesses, and why there

    def begin(self, tokens: Sequence[int]) -> None:
        self._written = list(tokens[-LONGEST_SUFFIX:])

    def root(self) -> State:
        return self._places

    def guesses(self, state: State) -> Iterator[Guess]:
        seen = set()
        for place, why in state:
            while place < len(self.tokens) and self.tokens[place] == BREAK:
                place, why = place + 1, "start"
            if place < len(self.tokens) and place not in seen:
                seen.add(place)
                run = why + 1 if isinstance(why, int) else 1
                kind = max(size for size in RUNS if size <= why) if isinstance(why, int) else why
                yield self.tokens[place], ("given", kind), [(place + 1, run)]

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        for token in tokens:
            self._written = [*self._written, token][-LONGEST_SUFFIX:]
            place = next((after[0][0] for guess, _, after in self.guesses(self._places) if guess == token), None)
            if place is not None:
                self._at, self._run, self.followed = place, self._run + 1, self.followed + 1
                self._places = [(place, self._run)]
            else:
                self._lose()

    def _lose(self) -> None:
        """Guess where the text goes on after a token that was not expected."""
        expected, self._run = self._at, 0
        found = nearest(self.tokens, self._written, expected + 1, ends=self._ends.get(self._written[-1], ()))
        near = [] if found is None else [(found, "found")]
        self._places = [*near, (expected + 1, "next"), (expected, "same")]
        self._at = self._places[0][0]


def nearest(
    tokens: Sequence[int],
    written: Sequence[int],
    expected: int,
    shortest: int = 1,
    ends: Iterable[int] | None = None,
) -> int | None:
    """The place in `tokens` behind the longest suffix of `written`, nearest to where it was expected.

    `ends` are the places behind the last token that was written, where these are known.
    """
    places = range(1, len(tokens)) if ends is None else ends
    matches = ((_equal(tokens, end, written), -abs(end - expected), -end) for end in places)
    length, distance, end = max(matches, default=(0, 0, 0))
    is_match = length >= shortest and (length > 1 or -distance <= REACH)
    return -end if is_match else None


def _equal(tokens: Sequence[int], end: int, written: Sequence[int]) -> int:
    """How many tokens before a place are those written last."""
    length, most = 0, min(LONGEST_SUFFIX, end, len(written))
    while length < most and tokens[end - 1 - length] == written[-1 - length]:
        length += 1
    return length
