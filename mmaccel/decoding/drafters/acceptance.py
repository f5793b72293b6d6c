"""How often drafts of each kind are right, learned from every text that is written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence


class Acceptance:
    """Shares of draft tokens that were right, by kind; older ones count less and less.

    A guess need not be verified to be judged: what the model wrote in its place tells as well. So kinds that are not
    drafted for a while are still followed.

    Parameters
    ----------
    expected
        Shares before anything is known; 0.1 for kinds that are not in it.
    weight
        Observations that these are worth.
    memory
        Observations after which one counts 1/e of a new one.

    Examples
    --------
    >>> shares = Acceptance({"copy": 0.5}, weight=2)
    >>> shares.observe(["copy"], True)
    >>> round(shares["copy"], 2)
    0.67
    """

    def __init__(self, expected: Mapping[Hashable, float], weight: float = 4, memory: float = 100) -> None:
        self.expected, self.weight = expected, weight
        self._fade = 1 - 1 / memory
        self._seen: dict[Hashable, tuple[float, float]] = {}  # right ones, and all

    def __getitem__(self, kind: Hashable) -> float:
        return self._share(kind, self.expected.get(kind, 0.1))

    def of_all(self, kinds: Sequence[Hashable]) -> float:
        """Share of tokens that were right where all these kinds of guess agreed; like the best of them, until known."""
        best = max(self[kind] for kind in kinds)
        return best if len(kinds) == 1 else self._share(tuple(kinds), best)

    def _share(self, kind: Hashable, expected: float) -> float:
        right, count = self._seen.get(kind, (0.0, 0.0))
        return (right + self.weight * expected) / (count + self.weight)

    def observe(self, kinds: Sequence[Hashable], is_right: bool) -> None:
        """Learn whether a token that these kinds of guess agreed on was what the model wrote."""
        for kind in kinds if len(kinds) == 1 else (*kinds, tuple(kinds)):
            right, count = self._seen.get(kind, (0.0, 0.0))
            self._seen[kind] = right * self._fade + is_right, count * self._fade + 1
