"""Drafted: the blocks that a row may come to next, likeliest first, and what a pass says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

ORDER = (0.7, 0.15, 0.06)  # how often the next commit is the surest, second or third of the foreseen; on tiny-canvas
KEPT = 2  # times the drafts of a pass: blocks of which logits are kept; more were no help on tiny-canvas


class Drafted:
    """The blocks of one row, as the row is filled.

    Which tokens a model commits can be foreseen better than their order, which near-ties decide. So drafts are no
    chain: where the next commit may be one of two, both blocks are drafted, and what follows from both is the same.

    Parameters
    ----------
    original
        The scheduler's step.
    kwargs
        How it is called.
    row
        Number of the row.
    over
        Whether a text is finished after a step: `over(row, before, after)`.
    most
        Blocks of the row in one pass.
    """

    def __init__(
        self, original: Callable[..., Any], kwargs: dict[str, Any], row: int, over: Callable[..., bool], most: int
    ) -> None:
        self.original, self.kwargs, self.row, self.over, self.most = original, kwargs, row, over, most
        self.mask = kwargs["mask_token_id"]
        self.known: dict[tuple[int, ...], torch.Tensor] = {}  # logits [L, V] by block
        self.first = kwargs["sample"][row]  # the next block, which is sure

    def logits_of(self, block: torch.Tensor) -> torch.Tensor | None:
        """True logits of a block, if a pass gave them."""
        return self.known.get(_key(block))

    def learn(self, blocks: list[torch.Tensor], logits: torch.Tensor) -> None:
        """Keep what a pass gave, `[K, L, V]`, and what those shortly before it did."""
        for block, own in zip(blocks, logits, strict=False):
            self.known.pop(_key(block), None)
            self.known[_key(block)] = own
        while len(self.known) > KEPT * self.most:
            self.known.pop(next(iter(self.known)))

    def draft(self, kwargs: dict[str, Any], made: int, left: int) -> list[torch.Tensor]:
        """Blocks that follow the row's own, after `made` steps and with so many `left`; the first is sure."""
        most = min(self.most, left)
        self.kwargs, own = kwargs, kwargs["sample"][self.row]
        if most < 1 or not (own == self.mask).any():
            return []
        self.learn([own], kwargs["model_output"][self.row][None].clone())  # without those of the text before
        self.first = first = self._step(own, kwargs["model_output"][self.row], made)
        chosen: list[torch.Tensor] = []
        odds, waiting = {_key(first): 1.0}, {_key(first): (first, own, made + 1)}
        while waiting and len(chosen) < most:
            best = max(waiting, key=odds.__getitem__)
            block, before, number = waiting.pop(best)
            chosen.append(block)
            if len(chosen) == most or not (block == self.mask).any() or self.over(self.row, before, block):
                continue
            for share, after in zip(ORDER[: most - len(chosen)], self._next(block, number), strict=False):
                odds[_key(after)] = odds.get(_key(after), 0.0) + share * odds[best]
                waiting.setdefault(_key(after), (after, block, number + 1))
        return chosen

    def walk(self, made: int, most: int) -> list[torch.Tensor]:
        """Up to so many of the scheduler's steps from the row's own block, as far as a pass has given true logits."""
        path, before, after = [self.first], self.kwargs["sample"][self.row], self.first
        while len(path) < most and not self.over(self.row, before, after) and (after == self.mask).any():
            logits = self.logits_of(after)
            assert logits is not None
            before, after = after, self._step(after, logits, made + len(path))
            if self.logits_of(after) is None:
                break
            path.append(after)
        return path

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(logits.nbytes for logits in self.known.values())

    def _step(self, block: torch.Tensor, logits: torch.Tensor, number: int) -> torch.Tensor:
        """The block after the scheduler's step of this number."""
        call = {**self.kwargs, "model_output": logits[None], "sample": block[None], "timestep": number}
        return self.original(**call).prev_sample[0]

    def _next(self, block: torch.Tensor, number: int) -> Iterator[torch.Tensor]:
        """Where a step may lead: by the logits of the block most like it, or with the next surest token instead."""
        alike = (torch.tensor(list(self.known), device=block.device) == block).sum(1).tolist()
        logits = list(self.known.values())[max(range(len(alike)), key=lambda n: (alike[n], n))]  # of equals the last
        after = self._step(block, logits, number)
        yield after
        chances, tokens = logits.float().softmax(-1).max(-1)
        moved, left = (after != block) & (block == self.mask), after == self.mask
        if not moved.any() or not left.any():
            return
        least = int(chances.masked_fill(~moved, torch.inf).argmin())
        for place in chances.masked_fill(~left, -1).topk(min(len(ORDER) - 1, int(left.sum()))).indices.tolist():
            other = after.clone()
            other[least], other[place] = self.mask, tokens[place]
            yield other


def _key(block: torch.Tensor) -> tuple[int, ...]:
    return tuple(block.tolist())
