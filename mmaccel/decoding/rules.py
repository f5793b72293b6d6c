"""Acceptance rules as objects: a name, whether the rule is lossless, and which drafts it may judge.

The mathematics lives in `chain`, `tree` and `grouped`; its functions can be imported from here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from .chain import ChainJudgement, Stop, block, token_ratio, unscaled
from .grouped import grouped_ratio
from .tree import TreeJudgement, one_hot_tree, without_replacement

__all__ = [
    "Block",
    "ChainJudgement",
    "ChainRule",
    "Drawn",
    "Grouped",
    "OneHot",
    "Rule",
    "Stop",
    "TokenRatio",
    "TreeJudgement",
    "TreeRule",
    "WithoutReplacement",
    "block",
    "grouped_ratio",
    "one_hot_tree",
    "token_ratio",
    "without_replacement",
]

Drawn = Literal["deterministic", "sampled", "without_replacement"]


@dataclass(frozen=True)
class Rule:
    """A named acceptance rule: whether it is lossless, and which kinds of draft it may judge."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    drawn: ClassVar[frozenset[Drawn]]


@dataclass(frozen=True)
class ChainRule(Rule):
    """A rule for chains whose tokens were drawn from known distributions."""

    drawn: ClassVar[frozenset[Drawn]] = frozenset({"sampled"})

    def judge(self, p: Tensor, q: Tensor, tokens: Tensor) -> ChainJudgement:
        """Judge `tokens [B, K]` drawn from `q [B, K, V]` by `p [B, K + 1, V]`."""
        raise NotImplementedError(f"{type(self).__name__} does not define judge()")


@dataclass(frozen=True)
class TreeRule(Rule):
    """A rule for children that are tried one after the other at each node."""

    def judge(self, p: Tensor, q: Tensor | None, tokens: Tensor, parent: Sequence[int]) -> TreeJudgement:
        """Judge `tokens [B, K]` with the given parents by `p [B, N, V]`; `q [B, V]` or None."""
        raise NotImplementedError(f"{type(self).__name__} does not define judge()")


@dataclass(frozen=True)
class TokenRatio(ChainRule):
    """`token_ratio` as a rule object."""

    name: ClassVar[str] = "token_ratio"
    lossless: ClassVar[bool] = True

    def judge(self, p: Tensor, q: Tensor, tokens: Tensor) -> ChainJudgement:
        """See `token_ratio`."""
        return token_ratio(p, q, tokens)


@dataclass(frozen=True)
class Block(ChainRule):
    """`block` as a rule object; the default for sampled chains."""

    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True

    def judge(self, p: Tensor, q: Tensor, tokens: Tensor) -> ChainJudgement:
        """See `block`."""
        return block(p, q, tokens)


@dataclass(frozen=True, eq=False)
class Grouped(ChainRule):
    """`grouped_ratio` with the usual residual (GSD, So et al., 2025): lossy, more is accepted.

    Defaults are the published image settings (7 neighbours on each side). Raises ValueError on use if a
    setting is out of range.
    """

    group_size: int = 14
    delta: float = 0.15
    distance: float = 0.5
    embeddings: Tensor | None = None
    name: ClassVar[str] = "grouped"
    lossless: ClassVar[bool] = False

    def judge(self, p: Tensor, q: Tensor, tokens: Tensor) -> ChainJudgement:
        """See `grouped_ratio`."""
        accepted = grouped_ratio(
            p[:, :-1],
            q,
            tokens,
            group_size=self.group_size,
            delta=self.delta,
            distance=self.distance,
            embeddings=self.embeddings,
        )
        return ChainJudgement(accepted, unscaled(p), "first_failure")


@dataclass(frozen=True)
class OneHot(TreeRule):
    """`one_hot_tree` as a rule object; the default for deterministic drafts."""

    name: ClassVar[str] = "one_hot"
    lossless: ClassVar[bool] = True
    drawn: ClassVar[frozenset[Drawn]] = frozenset({"deterministic"})

    def judge(self, p: Tensor, q: Tensor | None, tokens: Tensor, parent: Sequence[int]) -> TreeJudgement:
        """See `one_hot_tree`; `q` is not used."""
        return one_hot_tree(p, tokens, parent)


@dataclass(frozen=True)
class WithoutReplacement(TreeRule):
    """`without_replacement` as a rule object; the default for children drawn without replacement."""

    name: ClassVar[str] = "without_replacement"
    lossless: ClassVar[bool] = True
    drawn: ClassVar[frozenset[Drawn]] = frozenset({"without_replacement"})

    def judge(self, p: Tensor, q: Tensor | None, tokens: Tensor, parent: Sequence[int]) -> TreeJudgement:
        """See `without_replacement`; all parents are the root."""
        if q is None:
            raise ValueError("the without_replacement rule needs q [B, V]; build Draft.without_replacement")
        return without_replacement(p, q, tokens)
