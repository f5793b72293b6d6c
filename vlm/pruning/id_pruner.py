"""IDPruner: important tokens that differ from those chosen before; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from .compressed import Compressed, attention, chosen
from .compressor import Compressor


@register("vlm")
@dataclass(frozen=True)
class IDPruner(Compressor):
    """Choose tokens one by one by importance minus similarity to those chosen before; lossy.

    IDPruner: Harmonizing Importance and Diversity in Visual Token Pruning for MLLMs (2026), by maximal marginal
    relevance: the next token has the highest
    ``balance * importance - (1 - balance) * max cosine with the chosen``; the first goes by importance alone.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.25; None where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.
    balance
        From 0 (diversity alone) to 1 (importance alone); default 0.5 as the reference code.
    step
        Tokens to choose at once, at least 1, default 1 as the reference code; more is faster and less selective.

    Notes
    -----
    Lossy. Importance is the attention that a token receives in the vision tower, scaled to 0 to 1; the
    reference code has a trained selector there.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> IDPruner(keep=0.25).compress(torch.randn(4, 16, 8), torch.rand(4, 16)).tokens.shape
    torch.Size([16, 8])
    """

    balance: float = 0.5
    step: int = 1

    paper: ClassVar[str] = "IDPruner: Harmonizing Importance and Diversity in Visual Token Pruning for MLLMs, 2026"
    advice: ClassVar[Advice] = Advice(
        "Few tokens of varied content: what it keeps is important and unlike the rest.",
        "Choosing token after token takes time; raise step= to choose several at once.",
    )
    needs_attention: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_number(self.balance, 0, 1), "balance", "from 0 to 1")
        self._require(is_count(self.step), "step", "a whole number of at least 1")

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        unit = normalize(features.flatten(0, 1).float(), dim=-1)
        importance = attention(scores).flatten()
        importance = importance - importance.min()
        importance = importance / (importance.max() + 1e-6)
        return chosen(features, self._choose(unit, importance, self.count(len(unit))))

    def _choose(self, unit: torch.Tensor, importance: torch.Tensor, count: int) -> torch.Tensor:
        """Indices in the order in which they are chosen; each round depends on all before."""
        value, taken = importance.clone(), torch.zeros_like(importance, dtype=torch.bool)
        nearest = torch.full_like(importance, -torch.inf)
        rounds: list[torch.Tensor] = []
        for first in range(0, count, self.step):
            best = first_highest(value.masked_fill(taken, -torch.inf), min(self.step, count - first))
            rounds.append(best)
            taken[best] = True
            nearest = torch.maximum(nearest, (unit @ unit[best].T).amax(1))
            value = self.balance * importance - (1 - self.balance) * nearest
        return torch.cat(rounds)


def first_highest(value: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` highest, ties by index."""
    if count == 1:
        return value.argmax(keepdim=True)
    return value.sort(descending=True, stable=True).indices[:count]
