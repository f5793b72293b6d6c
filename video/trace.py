"""What a run computed, step by step and token by token, as numbers and as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch

COMPUTED, FORECAST, INK, PAPER = (38, 84, 124), (222, 226, 230), (60, 60, 60), (255, 255, 255)


class Trace:
    """The tokens that each step of a run computed.

    Parameters
    ----------
    levels
        Noise level of each step.

    Examples
    --------
    >>> trace = Trace([1.0, 0.5])
    >>> trace.add(1.0, tokens=4)
    >>> trace.add(torch.tensor([1]), tokens=4)
    >>> trace.shares(), trace.counts().tolist()
    ([1.0, 0.25], [1, 2, 1, 1])
    """

    def __init__(self, levels: Sequence[float]) -> None:
        self.levels = list(levels)
        self.tokens = 0
        self._steps: list[float | torch.Tensor] = []

    def add(self, active: float | torch.Tensor, tokens: int) -> None:
        """Note a step that computed all `tokens` (1), none (0), or those at the indices `active`."""
        self.tokens = tokens
        self._steps.append(active if isinstance(active, int | float) else active.cpu())

    def shares(self) -> list[float]:
        """Share of the tokens that each step computed."""
        return [float(s) if isinstance(s, int | float) else round(len(s) / self.tokens, 4) for s in self._steps]

    def mask(self) -> torch.Tensor:
        """Which tokens each step computed, bool `[steps, S]`."""
        rows = torch.zeros(len(self._steps), self.tokens, dtype=torch.bool)
        for row, active in zip(rows, self._steps, strict=True):
            if isinstance(active, torch.Tensor):
                row[active] = True
            else:
                row[:] = bool(active)
        return rows

    def counts(self) -> torch.Tensor:
        """In how many steps each token was computed, `[S]`."""
        return self.mask().sum(0)
