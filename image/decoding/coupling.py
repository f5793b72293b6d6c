"""Couplings: which drafts of a window are kept, and how those of the next pass are drawn from what this pass computed.

All of them leave every draft distributed as the newest `p` given the tokens before it, which is what makes
the window decoder lossless; they differ in how often a draft survives, and so in speed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from mmaccel.decoding import sample
from mmaccel.kernels import accept_length, residual_sample

COUPLINGS = ("independent", "maximal", "gumbel", "gumbel_exact")

# Probability of keeping each draft, from `(p, q, drafts)`, where a lossy method brings its own
Acceptance = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


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


class Coupling:
    """How the drafts of a window are judged and redrawn.

    Parameters
    ----------
    name
        One of `COUPLINGS`.
    generator
        Source of all randomness but the Gumbel noise.
    acceptance
        Of a lossy method; by default drafts are judged by the token ratio (Leviathan et al., 2023).
    """

    def __init__(self, name: str, generator: torch.Generator | None, acceptance: Acceptance | None = None) -> None:
        self.name, self.generator, self.acceptance = name, generator, acceptance
        device = None if generator is None else generator.device
        # seeds of kernels are drawn on the host, so that no pass waits for the device
        self._seeds = random.Random(int(torch.randint(2**62, (), generator=generator, device=device)))

    def __call__(
        self, p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose a token for every position of a window, and say how many of them are final.

        Parameters
        ----------
        p
            `[R, W, V]`, what the model says of each position.
        q
            `[R, W, V]`, what the drafts were drawn from; the last row, where nothing is drafted, is 0.
        drafts
            `[R, W - 1]`.
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
        if self.name.startswith("gumbel") and noise is None:
            raise ValueError("the Gumbel couplings need noise")
        if self.name == "gumbel_exact":
            tokens = self._fresh(p, noise)
            return tokens, _leading(tokens[:, :-1] == drafts)
        if p.shape[1] == 1:  # plain decoding
            return self._fresh(p, noise), torch.zeros(len(p), dtype=torch.long, device=p.device)
        if self.name == "maximal":
            return self._accept_or_replace(p, q, drafts)
        kept = accept_length(p, q[:, :-1], drafts, self._uniform(drafts)).long()
        order = torch.arange(p.shape[1], device=p.device)
        tokens = torch.where(order < kept[:, None], torch.nn.functional.pad(drafts, (0, 1)), self._fresh(p, noise))
        # the final token is never a fresh one: it is drawn from the residual of the failed draft, or is the bonus
        last = residual_sample(p, q[:, :-1], kept, self._seed())
        return tokens.scatter(1, kept[:, None], last[:, None]), kept

    def _accept_or_replace(
        self, p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same step at every position, also behind the first failure: each is a row of its own to the kernels."""
        places = drafts.shape[1] + 1
        each_p, each_q = p.reshape(-1, 1, p.shape[2]), q.reshape(-1, 1, q.shape[2])
        if self.acceptance is None:
            padded = torch.nn.functional.pad(drafts, (0, 1))
            passed = accept_length(each_p, each_q, padded.view(-1, 1), self._uniform(padded).view(-1, 1)) > 0
            passed = passed.view(-1, places)[:, :-1]
        else:
            passed = self._uniform(drafts) < self.acceptance(p[:, :-1], q[:, :-1], drafts)
        first = torch.zeros(len(each_p), dtype=torch.long, device=p.device)
        replaced = residual_sample(each_p, each_q, first, self._seed()).view(-1, places)
        tokens = torch.cat([torch.where(passed, drafts, replaced[:, :-1]), replaced[:, -1:]], 1)
        return tokens, _leading(passed)

    def _fresh(self, p: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        return sample(p, self.generator) if noise is None else (p.log() + noise).argmax(-1)

    def _uniform(self, drafts: torch.Tensor) -> torch.Tensor:
        return torch.rand(drafts.shape, generator=self.generator, device=drafts.device)

    def _seed(self) -> int:
        return self._seeds.getrandbits(63)


def _leading(passed: torch.Tensor) -> torch.Tensor:
    """How many are true from the start of each row."""
    return passed.int().cumprod(-1).sum(-1)
