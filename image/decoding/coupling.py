"""Couplings: how the drafts of the next pass are drawn from what this pass computed.

All of them leave every draft distributed as the newest `p` given the tokens before it, which is what makes
the window decoder lossless; they differ in how often a draft survives, and so in speed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmaccel.decoding import residual, sample

COUPLINGS = ("independent", "maximal", "gumbel", "gumbel_exact")


class GumbelNoise:
    """Standard Gumbel noise, one row `[batch, V]` per position, drawn in the order of positions.

    Position `i` gets the same noise however many positions are asked for at a time, so that window decoding
    and one-token decoding can be given the same noise. Rows before `start` are forgotten.

    Parameters
    ----------
    draw
        Gives the row of the next position.
    length
        Positions in all. Those behind the last one are never sampled: they get its row, and draw none.
    """

    def __init__(self, draw: Callable[[], torch.Tensor], length: int) -> None:
        self.draw, self.last = draw, length - 1
        self.start = 0
        self.rows: list[torch.Tensor] = []

    def at(self, positions: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Noise `[batch, W, V]` for `positions [batch, W]`, all within `first .. last`."""
        del self.rows[: first - self.start]
        self.start = max(self.start, first)
        while self.start + len(self.rows) <= min(last, self.last):
            self.rows.append(self.draw())
        stacked = torch.stack(self.rows, 1)
        index = (positions.clamp_max(self.last) - self.start)[..., None].expand(-1, -1, stacked.shape[2])
        return stacked.gather(1, index)


def couple(
    coupling: str,
    p: torch.Tensor,
    q: torch.Tensor,
    drafts: torch.Tensor,
    passed: torch.Tensor,
    generator: torch.Generator | None,
    noise: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose a token for every position of a window, and say how many of them are final.

    Parameters
    ----------
    coupling
        One of `COUPLINGS`.
    p
        `[R, W, V]`, what the model says of each position.
    q
        `[R, W - 1, V]`, what the drafts were drawn from.
    drafts
        `[R, W - 1]`.
    passed
        Bool `[R, W - 1]`, the outcome of the acceptance test of each draft.
    noise
        Gumbel noise `[R, W, V]` of the positions, for the two Gumbel couplings.

    Returns
    -------
    tokens
        `[R, W]`; the first `kept` drafts, then the replacement of the first that failed, then new drafts
        with distribution `p`.
    kept
        `[R]`, drafts accepted in a row from the start; `kept + 1` tokens are final.
    """
    if coupling == "gumbel_exact":
        tokens = (p.log() + _needed(noise)).argmax(-1)
        passed = tokens[:, :-1] == drafts
        return tokens, passed.int().cumprod(-1).sum(-1)
    kept = passed.int().cumprod(-1).sum(-1)
    if coupling == "maximal":
        # The same accept-or-replace step at every position, also behind the first failure.
        replaced = torch.where(passed, drafts, sample(residual(p[:, :-1], q), generator))
        return torch.cat([replaced, sample(p[:, -1:], generator)], 1), kept
    fresh = (p.log() + _needed(noise)).argmax(-1) if coupling == "gumbel" else sample(p, generator)
    width = p.shape[1]
    order = torch.arange(width, device=p.device)
    tokens = torch.where(order < kept[:, None], torch.nn.functional.pad(drafts, (0, 1)), fresh)
    # The final token is never the fresh one: it is the residual of the failed draft, or the bonus.
    row = torch.arange(p.shape[0], device=p.device)
    q_padded = torch.nn.functional.pad(q, (0, 0, 0, 1))  # nothing was drafted for the bonus position
    last = sample(residual(p[row, kept], q_padded[row, kept]), generator)
    return tokens.scatter(1, kept[:, None], last[:, None]), kept


def _needed(noise: torch.Tensor | None) -> torch.Tensor:
    if noise is None:
        raise ValueError("the Gumbel couplings need noise")
    return noise
