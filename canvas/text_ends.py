"""TextEnds: where the texts of a canvas end, as far as a call says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class TextEnds:
    """Where texts end.

    Parameters
    ----------
    token
        The token that ends a text, if one does.
    looks
        The scheduler's own check, which rows are finished.

    Attributes
    ----------
    stops
        The token at which the pipeline stops; None where it does not.
    known
        Whether that is known: a call that is not the session's shows it only as it goes on.
    """

    def __init__(self, token: int | None, looks: Callable[..., torch.Tensor]) -> None:
        self.token, self.looks = token, looks
        self.stops: int | None = None
        self.known = False

    def know(self, stops: int | None) -> None:
        """From now on it is known at which token the pipeline stops."""
        self.stops, self.known = stops, True

    def over(self, ids: torch.Tensor, block: torch.Tensor, moved: torch.Tensor, **told: Any) -> bool:
        """Whether the scheduler takes a text `[N]`, whose last block `[L]` has `moved [L]`, for finished, or may."""
        if not self.known:
            return True
        if self.stops is None:
            return False
        finished = torch.zeros(1, dtype=torch.bool, device=ids.device)
        told |= {"sampled_tokens": block[None], "final_transfer": moved[None], "finished": finished}
        return bool(self.looks(cur_x=ids[None], eos_token_id=self.stops, **told).any())

    def within(self, block: torch.Tensor, prompt: torch.Tensor | None) -> torch.Tensor:
        """What of a block `[B, L]` belongs to the texts, their ends included.

        The pipeline may fill some of the rest before it sees an end: for texts that end early the steps that it would
        have made are more than those that are counted by this.
        """
        ends = (block == self.stops) if self.stops is not None else torch.zeros_like(block, dtype=torch.bool)
        if prompt is not None:  # its turns may have ends of their own
            ends &= ~prompt
        return ends.cumsum(1) <= ends.long()
