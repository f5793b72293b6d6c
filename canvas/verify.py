"""Verifier: several steps of a scheduler drafted from one pass, and verified in the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Verifier:
    """Jumps over the steps of a greedy scheduler that it can foresee.

    From the logits of a canvas it lets the scheduler make several steps, as if these logits held for all of them. One
    pass over these canvases, as a batch, gives each its true logits; a step from one canvas by its own logits either
    leads to the next draft, which is then verified, or ends the jump.

    Parameters
    ----------
    drafts
        The most canvases of a row in one pass.
    compute
        Gives logits of canvases `[B * K, N]`, of the whole or of the block.
    over
        Whether the pipeline takes a text for finished after a step: `over(row, before, after)`, with blocks `[L]`.

    Attributes
    ----------
    canvases : int
        How many were computed, over all rows.
    jumps : int
        Passes after which more than one step was taken.
    warnings : list of str
        Why runs were plain.
    """

    def __init__(self, drafts: int, compute: Callable[[torch.Tensor], torch.Tensor], over: Callable[..., bool]) -> None:
        self.drafts, self.compute, self.over = drafts, compute, over
        self.begin()

    def begin(self) -> None:
        """Forget the last run."""
        self.canvases = self.jumps = self.ended = 0
        self.warnings: list[str] = []
        self.made: list[int] = []  # steps that each row has made in this block
        self.found: tuple[torch.Tensor, torch.Tensor] | None = None

    def known(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Logits of the block of a canvas, if the last pass gave them."""
        if self.found is None or self.found[0].shape != ids.shape or not torch.equal(self.found[0], ids):
            return None
        return self.found[1]

    @property
    def steps(self) -> int:
        """How many steps the pipeline would have taken, one pass each; a block lasts as long as its slowest row."""
        return self.ended + max(self.made, default=0)

    def step(
        self, original: Callable[..., Any], ids: torch.Tensor, kwargs: dict[str, Any], finished: torch.Tensor | None
    ) -> Any:
        """What the scheduler returns after as many steps as could be verified; rows that are `finished [B]` rest."""
        sample = kwargs["sample"]
        if int(kwargs["timestep"]) == 0:
            self.ended, self.made = self.steps, [0] * len(sample)
        reason = self._reason(kwargs, len(sample))
        if reason:
            self.warnings = [reason]
            self.made = [made + 1 for made in self.made]
            return original(**kwargs)
        done = [False] * len(sample) if finished is None else finished.tolist()
        rows = [[] if done[row] else self._draft(original, kwargs, row) for row in range(len(sample))]
        longest = max(map(len, rows))
        taken = [len(chain) for chain in rows]
        if longest > 1:
            logits = self._logits(ids, rows, longest, sample.shape[1])
            taken = [self._verified(original, kwargs, row, chain, logits[row]) for row, chain in enumerate(rows)]
        self.made = [made + count for made, count in zip(self.made, taken, strict=True)]
        self.jumps += max(taken) > 1
        out = self._taken(original, kwargs, rows, taken)
        if longest > 1:
            last = torch.stack([logits[row, max(count, 1) - 1] for row, count in enumerate(taken)])
            self.found = (torch.cat([ids[:, : -sample.shape[1]], out.prev_sample], 1), last)
        return out

    @staticmethod
    def _reason(kwargs: dict[str, Any], rows: int) -> str:
        """Why steps cannot be foreseen; empty if they can."""
        if kwargs.get("temperature", 0.0) > 0:
            return "canvas.FreeDave ran plainly: it verifies greedy steps, and temperature is above 0"
        if rows > 1 and (kwargs.get("editing_threshold") or 0) > 0:
            return (
                "canvas.FreeDave ran plainly: in a batch the pipeline edits some rows while it fills others; give"
                " editing_threshold=None"
            )
        return ""

    @staticmethod
    def _one(original: Callable[..., Any], kwargs: dict[str, Any], logits: Any, block: Any, number: int) -> Any:
        """The block `[L]` of a row after the scheduler's step of this number."""
        call = {**kwargs, "model_output": logits[None], "sample": block[None], "timestep": number}
        return original(**call).prev_sample[0]

    def _draft(self, original: Callable[..., Any], kwargs: dict[str, Any], row: int) -> list[torch.Tensor]:
        """The next blocks of a row, by the logits that it has; none after that which completes or ends it."""
        block, mask = kwargs["sample"][row], kwargs["mask_token_id"]
        chain: list[torch.Tensor] = []
        while len(chain) < self.drafts and (block == mask).any():
            before, number = block, self.made[row] + len(chain)
            block = self._one(original, kwargs, kwargs["model_output"][row], before, number)
            chain.append(block)
            if self.over(row, before, block):
                break
        return chain

    def _logits(self, ids: torch.Tensor, rows: list[list[torch.Tensor]], longest: int, length: int) -> torch.Tensor:
        """Those of all drafts `[B, K, L, V]`; shorter chains are filled up with their last."""
        own = ids[:, -length:]  # of rows that have ended
        filled = [
            [*chain, *[(chain or own[row : row + 1])[-1]] * (longest - len(chain))] for row, chain in enumerate(rows)
        ]
        blocks = torch.stack([torch.stack(list(chain)) for chain in filled])
        prefix = ids[:, None, :-length].expand(-1, longest, -1)
        self.canvases += len(rows) * longest
        return self.compute(torch.cat([prefix, blocks], 2).flatten(0, 1))[:, -length:].unflatten(0, (-1, longest))

    def _verified(
        self, original: Callable[..., Any], kwargs: dict[str, Any], row: int, chain: list[Any], logits: torch.Tensor
    ) -> int:
        """How many drafts of a chain are right; the first always is."""
        count = min(len(chain), 1)
        while count < len(chain):
            number = self.made[row] + count
            true = self._one(original, kwargs, logits[count - 1], chain[count - 1], number)
            if not torch.equal(true, chain[count]):
                break
            count += 1
        return count

    @staticmethod
    def _taken(original: Callable[..., Any], kwargs: dict[str, Any], rows: list[Any], taken: list[int]) -> Any:
        """An output of the scheduler's step that leads to the last draft that is right.

        The pipeline looks for the end of a text among the tokens of the last step; those of steps before it are told
        as masks there.
        """
        out, before, mask = original(**kwargs), kwargs["sample"], kwargs["mask_token_id"]
        chains = [[own, *chain] for own, chain in zip(before, rows, strict=True)]
        after = torch.stack([chain[count] for chain, count in zip(chains, taken, strict=True)])
        last = torch.stack([chain[max(count - 1, 0)] for chain, count in zip(chains, taken, strict=True)])
        out.prev_sample, moved = after, after != before
        out.sampled_tokens = torch.where(moved, torch.where(after != last, after, mask), out.sampled_tokens)
        out.transfer_index, out.editing_transfer_index = moved & (before == mask), moved & (before != mask)
        return out
