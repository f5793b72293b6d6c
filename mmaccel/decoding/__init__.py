"""Draft and verify: the drafts, acceptance rules, statistics and budget that all decoders share."""

from __future__ import annotations

from .accept import RULES, Verdict, accept
from .budget import Budget, VerifyCost
from .draft import Draft, SparseDistribution
from .probability import gumbel, normalize, one_hot, ratio, residual, sample
from .rules import (
    Block,
    ChainJudgement,
    ChainRule,
    Grouped,
    OneHot,
    Rule,
    TokenRatio,
    TreeJudgement,
    TreeRule,
    WithoutReplacement,
    block,
    grouped_ratio,
    one_hot_tree,
    token_ratio,
    without_replacement,
)
from .stats import Stats, block_efficiency

__all__ = [
    "RULES",
    "Block",
    "Budget",
    "ChainJudgement",
    "ChainRule",
    "Draft",
    "Grouped",
    "OneHot",
    "Rule",
    "SparseDistribution",
    "Stats",
    "TokenRatio",
    "TreeJudgement",
    "TreeRule",
    "Verdict",
    "VerifyCost",
    "WithoutReplacement",
    "accept",
    "block",
    "block_efficiency",
    "grouped_ratio",
    "gumbel",
    "normalize",
    "one_hot",
    "one_hot_tree",
    "ratio",
    "residual",
    "sample",
    "token_ratio",
    "without_replacement",
]
