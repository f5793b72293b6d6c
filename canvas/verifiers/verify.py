"""Verifier: several steps of a scheduler drafted from what is known, and verified in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..private import is_greedy
from .drafted import Drafted


class Verifier:
    """Jumps over the steps of a greedy scheduler that it can foresee.

    From the logits of a canvas, and of canvases much like it, it lets the scheduler make several steps. One pass over
    the canvases that these may lead to, as a batch, gives each its true logits; from one to the next leads the
    scheduler's step by these, as long as it meets a canvas of the pass.

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
    most_bytes : int
        The most that was kept of logits.
    edited : bool
        Whether somebody else, as a callback does, has changed the canvas between steps.
    warnings : list of str
        Why runs were plain.
    """

    def __init__(self, drafts: int, compute: Callable[[torch.Tensor], torch.Tensor], over: Callable[..., bool]) -> None:
        self.drafts, self.compute, self.over = drafts, compute, over
        self.begin()

    def begin(self) -> None:
        """Forget the last run."""
        self.canvases = self.jumps = self.most_bytes = 0
        self.warnings: list[str] = []
        self.made: list[int] = []  # steps that each row has made in this block
        self.rows: list[Drafted] = []
        self.foresees = self.edited = False
        self.left: tuple[torch.Tensor, torch.Tensor | None] | None = None  # canvas and logits as the last step left it

    def known(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Logits of the block of a canvas, if the last pass gave them; nothing of another than the last step left."""
        left, self.left = self.left, None
        if left is None:
            return None
        canvas, logits = left
        same = ids[:, : canvas.shape[1]]  # which may have another block behind it by now
        self.edited |= canvas.shape == same.shape and not torch.equal(canvas, same)
        return logits if canvas.shape == ids.shape and not self.edited else None

    def reached(self, waiting: torch.Tensor) -> int:
        """How many steps the pipeline would have made for this block, if rows are `waiting [B]`."""
        left = [made for made, waits in zip(self.made, waiting.tolist(), strict=True) if waits]
        return min(left) if left else max(self.made)

    def step(
        self,
        original: Callable[..., Any],
        ids: torch.Tensor,
        kwargs: dict[str, Any],
        finished: torch.Tensor | None,
        steps: int,
        edits: bool,
    ) -> Any:
        """What the scheduler returns after as many steps as could be verified, of which a block has `steps` at most.

        Rows that are `finished [B]` rest; `edits` says whether the scheduler edits tokens that it has committed.
        """
        sample = kwargs["sample"]
        if int(kwargs["timestep"]) == 0:
            self.made = [0] * len(sample)
            self.rows = [Drafted(original, kwargs, row, self.over, self.drafts) for row in range(len(sample))]
        reason = self._reason(kwargs, edits and len(sample) > 1)
        self.foresees = not reason
        if reason:
            self.warnings = [reason]
            self.made = [made + 1 for made in self.made]
            return original(**kwargs)
        done = [False] * len(sample) if finished is None else finished.tolist()
        blocks: list[list[torch.Tensor]] = [
            [] if done[row] else drafted.draft(kwargs, self.made[row], steps - self.made[row])
            for row, drafted in enumerate(self.rows)
        ]
        longest, paths = max(map(len, blocks)), blocks
        if longest > 1:  # else the pipeline's own pass is the one
            logits = self._logits(ids, blocks, longest, sample.shape[1])
            for row, drafted in enumerate(self.rows):
                drafted.learn(blocks[row], logits[row])
            paths = [
                drafted.walk(self.made[row], steps - self.made[row]) if blocks[row] else []
                for row, drafted in enumerate(self.rows)
            ]
            self.most_bytes = max(self.most_bytes, sum(drafted.nbytes() for drafted in self.rows))
        self.made = [made + len(path) for made, path in zip(self.made, paths, strict=True)]
        self.jumps += max(map(len, paths)) > 1
        return self._taken(original, kwargs, ids, paths)

    def _reason(self, kwargs: dict[str, Any], edits_some: bool) -> str:
        """Why steps cannot be foreseen; empty if they can."""
        if not is_greedy(kwargs):
            return "canvas.FreeDave ran plainly: it verifies greedy steps, and temperature is above 0"
        if edits_some:
            return (
                "canvas.FreeDave ran plainly: in a batch the pipeline edits some rows while it fills others; give"
                " editing_threshold=0.0"
            )
        if self.edited:
            return (
                "canvas.FreeDave ran plainly from where a callback had edited the canvas: a callback sees the canvases"
                " that its jumps lead to, and none between them"
            )
        return ""

    def _logits(self, ids: torch.Tensor, blocks: list[list[torch.Tensor]], longest: int, length: int) -> torch.Tensor:
        """Those of all drafts `[B, K, L, V]`; rows with fewer are filled up with their last."""
        own = ids[:, -length:]  # of rows that have ended
        filled = torch.stack(
            [
                torch.stack([*each, *[(each or own[row : row + 1])[-1]] * (longest - len(each))])
                for row, each in enumerate(blocks)
            ]
        )
        prefix = ids[:, None, :-length].expand(-1, longest, -1)
        self.canvases += len(blocks) * longest
        logits = self.compute(torch.cat([prefix, filled], 2).flatten(0, 1))
        return logits[:, -length:].clone().unflatten(0, (-1, longest))  # without those of the text before

    def _taken(self, original: Callable[..., Any], kwargs: dict[str, Any], ids: torch.Tensor, paths: list[Any]) -> Any:
        """An output of the scheduler's step that leads to the end of each path.

        The pipeline looks for the end of a text among the tokens of the last step; those of steps before it are told
        as masks there.
        """
        out, before, mask = original(**kwargs), kwargs["sample"], kwargs["mask_token_id"]
        walked = [[own, *path] for own, path in zip(before, paths, strict=True)]
        after, last = torch.stack([path[-1] for path in walked]), torch.stack([path[-2:][0] for path in walked])
        out.prev_sample, moved = after, after != before
        out.sampled_tokens = torch.where(moved, torch.where(after != last, after, mask), out.sampled_tokens)
        out.transfer_index, out.editing_transfer_index = moved & (before == mask), moved & (before != mask)
        known = [drafted.logits_of(block) for drafted, block in zip(self.rows, after, strict=True)]
        for row, path in enumerate(paths):
            if not path:  # it has ended or is full, and is not edited: nobody reads them
                known[row] = kwargs["model_output"][row]
        logits = [each for each in known if each is not None]
        whole = torch.stack(logits) if len(logits) == len(known) else None
        self.left = torch.cat([ids[:, : -before.shape[1]], after], 1), whole
        return out


def repeated(value: Any, count: int) -> Any:
    """An argument of a pass for `count` rows, where it was given for fewer."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or len(value) == count:
        return value
    return value.repeat_interleave(count // len(value), 0)
