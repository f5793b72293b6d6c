"""Draft and verify: one loop for image tokens, recognisers and language models, and what it is made of."""

from __future__ import annotations

from .budget import Budget
from .drafters.suffix_index import SuffixIndex
from .loop import Drafter, FixedWidth, Target, Width, draft_and_verify
from .matching import Draft, Verdict, match
from .probability import gumbel, one_hot, sample
from .row_drafters import TextDrafter
from .stats import Stats
from .verify_cost import VerifyCost

__all__ = [
    "Budget",
    "Draft",
    "Drafter",
    "FixedWidth",
    "Stats",
    "SuffixIndex",
    "Target",
    "TextDrafter",
    "Verdict",
    "VerifyCost",
    "Width",
    "draft_and_verify",
    "gumbel",
    "match",
    "one_hot",
    "sample",
]
