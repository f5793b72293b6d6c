"""Where guesses come from: what followed a token before, and what followed a longer match."""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Hashable, Iterator, Sequence
from math import exp
from sys import getsizeof
from typing import Any, Protocol

from ..dice import Dice
from ..matching import Likely
from .steps import Waiting
from .suffix_index import SuffixIndex, dict_bytes, tuple_bytes

State = Any  # of a source, at a node of a draft
Guess = tuple[int, Hashable, State]  # a token, its kind, and the state behind it
Context = tuple[int, ...]  # the last tokens of a text, or of a path of a draft
Known = dict[Context, "tuple[array[int], array[float]]"]  # tokens after it, and their probabilities
REMEMBER = 65_536  # contexts of which successors are kept, the newest
LEVELS = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # of probability, the first is the least that counts
KEEPS = {1: 0.5, 2: 0.7, 3: 0.8, 4: 0.8}  # of its probability, elsewhere, by equal tokens before
PLACES = {0: 0.5, 1: 0.15, 2: 0.03}  # and of that of a token to win a draw, by those that are faster
REST = 0.02  # least probability of the tokens that are not known
CONTEXT = 4  # tokens of the end of a path that sources are told


class Source(Protocol):
    """Proposes tokens that may follow a text, and learns from what a model says of it."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A text begins with these tokens."""

    def root(self) -> State:
        """The state at the end of the text; None where it knows nothing."""

    def guesses(self, state: State) -> Iterator[Guess]:
        """Tokens that may follow, the likeliest first."""

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        """The text goes on with `tokens`; after each of the `ends` the model found others likely."""


class CostlySource:
    """Base of sources whose guesses take time, and which are asked only where these are worth it."""

    def is_worth(self, state: State, left: float = 1.0, place: float = 0.0) -> bool:
        """Whether to ask for the guesses at a state.

        So much of their worth is `left` beside those of others; a `place` in the pass costs so much of a plain pass.
        """
        raise TypeError(f"{type(self).__name__} does not say what its guesses are worth")  # pragma: no cover

    def asking(self, state: State) -> Waiting[None]:
        """Wait for steps that its guesses take, if these can be taken with those for other texts."""
        yield from ()


class Successors:
    """What a model found likeliest after the same tokens, when it last saw them (Token Recycling, Luo et al., 2024).

    Every verified node teaches, accepted or not, so that the candidates of one pass are the drafts of the next. With
    `longest` above 1 those after several equal tokens come first, as in tables of n-grams (STAND, Song et al., 2025).
    In a sampled text they race as they will when it is drawn from them (STAND's Gumbel-top-k, with the random numbers
    of the text itself), and the winner comes first.

    Parameters
    ----------
    known
        Successors by the tokens before, shared by all texts of a session.
    forbidden
        Tokens that are never proposed.
    longest
        Most tokens that must be equal.
    dice
        Of a sampled text.

    Examples
    --------
    >>> source = Successors({}, frozenset())
    >>> source.begin([7])
    >>> source.learn([7], ends=[(3, 7)], likely=[[(5, 0.8), (6, 0.1)]])
    >>> [token for token, kind, state in source.guesses(source.root())]
    [5, 6]
    """

    def __init__(self, known: Known, forbidden: frozenset[int], longest: int = 1, dice: Dice | None = None) -> None:
        self.known, self.forbidden, self.longest, self.dice = known, forbidden, longest, dice
        self._end: Context = ()

    def begin(self, tokens: Sequence[int]) -> None:
        self._end = tuple(tokens[-self.longest :])

    def root(self) -> State:
        return self._end, 0

    def guesses(self, state: State) -> Iterator[Guess]:
        context, depth = state
        length = next((n for n in range(len(context), 0, -1) if context[-n:] in self.known), 0)
        found = list(zip(*self.known[context[-length:]], strict=True)) if length else []
        for token, kind in self._likeliest(found) if self.dice is None else self._fastest(found, self.dice, depth):
            if token not in self.forbidden:
                yield token, (*kind, length), ((*context, token)[-self.longest :], depth + 1)

    def _likeliest(self, found: Likely) -> Iterator[tuple[int, tuple[Hashable, ...]]]:
        for token, share in found:
            yield token, ("recycled", bisect(LEVELS, share))

    def _fastest(self, found: Likely, dice: Dice, depth: int) -> Iterator[tuple[int, tuple[Hashable, ...]]]:
        """In the order in which they end the race, each with the probability that no unknown token is faster."""
        rest = max(REST, 1 - sum(share for _, share in found))
        times = dice.times(found, depth)
        for place, (time, (token, _)) in enumerate(sorted(zip(times, found, strict=True))):
            yield token, ("drawn", min(place, max(PLACES)), bisect(LEVELS, exp(-rest * time)))

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        for end, found in zip(ends, likely, strict=False):
            if not found:
                continue
            kept = [(token, share) for token, share in found if share >= LEVELS[0]]
            shares = array("i", [token for token, _ in kept]), array("d", [share for _, share in kept])
            for length in range(1, 1 + min(self.longest, len(end))):
                self.known.pop(end[-length:], None)  # so that the newest stand last
                self.known[end[-length:]] = shares
        while len(self.known) > REMEMBER:
            del self.known[next(iter(self.known))]
        self._end = (*self._end, *tokens)[-self.longest :]


def successors_bytes(likely: int, longest: int, remember: int = REMEMBER) -> int:
    """Bytes of the successors of so many contexts at most, `likely` of each, none of them shared."""
    tokens, shares = array("i"), array("d")
    row = tuple_bytes(2) + sum(getsizeof(empty) + likely * empty.itemsize for empty in (tokens, shares))
    key = tuple_bytes(longest) + longest * getsizeof(REMEMBER)
    table = dict_bytes(2 * remember + 1)  # one that forgets as much as it learns has twice the room
    return remember * (row + key) + table


class Repeats:
    """What followed the longest match of the end of a text, in itself and in earlier ones.

    A state is a place in the index, the length of the match, and the place where the copy began: past the end of the
    text the copy itself goes on, as a text that repeats itself does.
    """

    EXPECTED = {1: 0.25, 2: 0.5, 3: 0.65, 4: 0.75, 6: 0.85, 8: 0.9, 16: 0.95}

    def __init__(self, index: SuffixIndex) -> None:
        self.index = index

    def begin(self, tokens: Sequence[int]) -> None:
        self.index.begin(tokens)

    def root(self) -> State:
        found = self.index.match()
        return None if found is None else (found[0], found[1], found[0])

    def guesses(self, state: State) -> Iterator[Guess]:
        place, length, start = state
        place = start if place >= len(self.index) else place
        token = self.index.token(place)
        if token is not None:
            kind = max(size for size in self.EXPECTED if size <= length)
            yield token, ("repeated", kind), (place + 1, length + 1, start)

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        for token in tokens:
            self.index.add(token)


EXPECTED: dict[Hashable, float] = {
    **{
        ("recycled", level + 1, length): share * KEEPS[length] for length in KEEPS for level, share in enumerate(LEVELS)
    },
    **{
        ("drawn", place, level, length): share * PLACES[place] * KEEPS[length]
        for place in PLACES
        for length in KEEPS
        for level, share in enumerate((LEVELS[0] / 2, *LEVELS))
    },
    **{("repeated", length): share for length, share in Repeats.EXPECTED.items()},
}
