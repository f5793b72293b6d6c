"""Statistics of a draft-and-verify run: what was drafted, accepted and emitted, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


def _add(left: Sequence[int], right: Sequence[int]) -> list[int]:
    length = max(len(left), len(right))
    padded = (list(values) + [0] * (length - len(values)) for values in (left, right))
    return [a + b for a, b in zip(*padded, strict=True)]


@dataclass
class Stats:
    """Counts of one or more runs; add to `seconds` and, for a prefill, to `forwards` directly.

    Attributes
    ----------
    rounds, rows
        Verification rounds, and the same counted once per sequence of the batch.
    drafted, emitted
        Draft tokens (or nodes) judged and tokens committed, over all sequences.
    tested_by_depth, accepted_by_depth
        How often the draft at each depth (0 = first) was reached, and how often it was accepted.
    forwards
        Forward passes of the target.
    seconds
        Wall time in seconds in `draft`, `verify` and `other`.

    Examples
    --------
    >>> stats = Stats()
    >>> stats.observe([2, 0], drafted=3)
    >>> stats.emitted, stats.tokens_per_forward, stats.acceptance
    (4, 2.0, [0.5, 1.0, 0.0])
    """

    rounds: int = 0
    rows: int = 0
    drafted: int = 0
    emitted: int = 0
    forwards: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    tested_by_depth: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"draft": 0.0, "verify": 0.0, "other": 0.0})

    def observe(
        self, accepted: Sequence[int], drafted: int, *, depth: int | None = None, nodes: int | None = None
    ) -> None:
        """Record one round: one forward, and `accepted[b] + 1` tokens emitted by each sequence b.

        Parameters
        ----------
        accepted
            Accepted draft tokens per sequence; -1 for one that waited for others and got no token at all.
        drafted
            Draft tokens per sequence (all nodes of a tree).
        depth
            Longest path of a tree; `drafted` by default, as in a chain.
        nodes
            Draft tokens of all sequences together, where `drafted` is only the most that one has.

        Raises
        ------
        ValueError
            If more was accepted than the draft is deep.
        """
        depth = drafted if depth is None else depth
        if not 0 <= depth <= drafted:
            raise ValueError(f"depth must be between 0 and drafted={drafted}, got {depth}")
        if any(not -1 <= n <= depth for n in accepted):
            raise ValueError(f"accepted must be between 0 and the draft depth {depth}, got {accepted}")
        self.rounds += 1
        self.forwards += 1
        self.rows += len(accepted)
        self.drafted += drafted * len(accepted) if nodes is None else nodes
        self.emitted += sum(accepted) + len(accepted)
        tested = [sum(n >= i for n in accepted) for i in range(depth)]
        passed = [sum(n > i for n in accepted) for i in range(depth)]
        self.tested_by_depth = _add(self.tested_by_depth, tested)
        self.accepted_by_depth = _add(self.accepted_by_depth, passed)

    @property
    def accepted(self) -> int:
        """Accepted draft tokens over all depths and sequences."""
        return sum(self.accepted_by_depth)

    @property
    def acceptance(self) -> list[float]:
        """Share accepted of the drafts reached at each depth; 0.0 where none was reached."""
        pairs = zip(self.accepted_by_depth, self.tested_by_depth, strict=True)
        return [passed / tested if tested else 0.0 for passed, tested in pairs]

    @property
    def tokens_per_forward(self) -> float:
        """Tokens emitted per sequence and target forward; 1.0 is plain decoding at any batch size."""
        if not self.forwards or not self.rows:
            return 0.0
        return self.emitted * self.rounds / (self.rows * self.forwards)

    def to_dict(self) -> dict[str, Any]:
        """Return all counts and the derived rates as plain JSON types."""
        derived = {"accepted": self.accepted, "acceptance": self.acceptance}
        return {**asdict(self), **derived, "tokens_per_forward": self.tokens_per_forward}
