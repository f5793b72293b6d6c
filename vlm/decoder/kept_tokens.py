"""The tokens of a prompt that the later layers of a decoder work on, from its first pass to its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.cache.argument import cache_of
from mmaccel.errors import PromptError

from .call import AttentionCall, GenerateRun
from .columns import Columns, before_layers, taken
from .rows import causal_pairs

ATTRIBUTE = "_mmaccel_kept"  # on the cache itself, so that a later turn knows, and its copies


class KeptTokens:
    """Tokens kept of a prompt, and what follows from them for masks and positions.

    Parameters
    ----------
    last
        The last layer that gets more than these.
    chosen : int64 `[B, K]`
        Which columns of those that this layer gets, ascending, -1 on the left where a row keeps fewer.
    length
        Columns of the prompt, padding included.
    lengths
        Tokens of each row.
    before
        What this layer itself gets of the prompt, None (default) for all.

    Attributes
    ----------
    columns
        Which of the prompt these are.
    """

    def __init__(
        self,
        last: int,
        chosen: torch.Tensor,
        length: int,
        lengths: Sequence[int],
        before: KeptTokens | None = None,
    ) -> None:
        self.last, self.lengths, self.chosen = last, list(lengths), chosen.clamp(min=0)
        index = self.chosen if before is None else before.columns.index.to(chosen.device).gather(1, self.chosen)
        self.columns: Columns = Columns(index, chosen >= 0, length)
        self._counts = self.columns.real.sum(1).tolist()  # read back from the device once, not in each step
        self.filling = True  # whether the pass of the prompt is under way

    def fill(self, layer: int, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """Hidden states, and in `kwargs` positions and mask, of a layer in the pass of the prompt."""
        self.columns.fill(kwargs)
        return taken(hidden, self.chosen, -2) if layer == self.last + 1 else hidden

    def pairs_missing(self, call: AttentionCall) -> int:
        """Pairs of query and key that plain attention would compute beside those of a call."""
        rows = zip(self.lengths, self._counts, strict=True)
        if self.filling:
            spared = [causal_pairs(length, length) - causal_pairs(count, count) for length, count in rows]
        else:
            spared = [call.queries * (length - count) for length, count in rows]
        return sum(spared) * call.query.shape[1] * (len(call.query) // len(self.lengths))


def require_all(cache: Any, is_known: bool) -> None:
    """Refuse a cache whose later layers lack tokens, unless it `is_known` how to go on from it.

    Raises
    ------
    PromptError
        If tokens are missing.
    """
    if getattr(cache, ATTRIBUTE, None) and not is_known:
        raise PromptError(
            "past_key_values holds a prompt of which vlm.PrefillDrop has dropped tokens in the later layers: go on in a"
            " session with vlm.PrefillDrop(), or start again without past_key_values"
        )


def install(
    layers: Sequence[torch.nn.Module],
    drops: dict[int, float],
    run: Callable[[], GenerateRun | None],
    stack: ExitStack,
) -> None:
    """Give each layer what is kept for it, and nothing else, until the stack is closed.

    `drops` are the shares to keep after some layers, which a call of `generate` is told; a direct call drops nothing,
    and may go on from a cache of one that did.
    """

    def act(number: int, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor | None:
        cache = cache_of(kwargs)
        before = list(getattr(cache, ATTRIBUTE, ()))
        active = run() or GenerateRun(kept=before)
        if number == 0:
            active.drops, active.kept = drops, before
            for kept in before:
                kept.filling = False
        kept = active.kept_at(number)
        if kept is None:
            return None
        if kept.filling:
            if cache is not None:
                setattr(cache, ATTRIBUTE, active.kept)
            return kept.fill(number, hidden, kwargs)
        held = cache.get_seq_length(number)
        kwargs["attention_mask"] = kept.columns.later_mask(kwargs.get("attention_mask"), hidden.shape[1], held)
        return hidden

    before_layers(layers, act, stack)
