"""One prompt before a layer of the language model, and what is cut from it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Row:
    """One prompt before a layer of the decoder.

    Attributes
    ----------
    hidden : `[L, D]`
        Hidden states, padding cut off.
    visual : bool `[L]`
        Which tokens show something.
    number, anchor : int64 `[L]`
        To which visual they belong and where they stand in it, as in :class:`Prompt`.
    cells
        Tokens of a frame, of each visual.
    scores : float32 `[L]`
        Attention of the last token to each, mean over heads, in the layer before.
    total
        Visual tokens before the first cut.
    """

    hidden: torch.Tensor
    visual: torch.Tensor
    number: torch.Tensor
    anchor: torch.Tensor
    cells: list[int]
    scores: torch.Tensor
    total: int

    def keeping(self, tokens: torch.Tensor, hidden: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The cut that leaves these of the visual tokens, and all words; of other hidden states, where there are."""
        stays = ~self.visual
        stays[tokens] = True
        index = stays.nonzero().squeeze(1)
        return index, (self.hidden if hidden is None else hidden)[index]


# What stays of a row: sorted indices `[K]` and their hidden states `[K, D]`.
Cut = Callable[[Row], tuple[torch.Tensor, torch.Tensor]]
