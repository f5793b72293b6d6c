"""The tokens of a prompt that the later layers of a decoder work on, from its first pass to its last."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.errors import PromptError
from mmaccel.patching import hook

from .call import Call, GenerateRun
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
    columns : int64 `[B, K]`
        Which columns of the prompt these are.
    real : bool `[B, K]`
        False where a row keeps fewer.
    """

    def __init__(
        self,
        last: int,
        chosen: torch.Tensor,
        length: int,
        lengths: Sequence[int],
        before: KeptTokens | None = None,
    ) -> None:
        self.last, self.real, self.chosen = last, chosen >= 0, chosen.clamp(min=0)
        self.columns: torch.Tensor = self.chosen if before is None else before.columns.gather(1, self.chosen)
        self.length, self.lengths = length, list(lengths)
        self.whole = bool(self.real.all())
        self.filling = True  # whether the pass of the prompt is under way

    def fill(self, layer: int, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """Hidden states, and in `kwargs` positions and mask, of a layer in the pass of the prompt."""
        embeddings = kwargs["position_embeddings"]
        kwargs["position_embeddings"] = tuple(_taken(part, self.columns, -2) for part in embeddings)
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = _taken(kwargs["position_ids"], self.columns, -1)
        kwargs["attention_mask"] = None if self.whole else self._causal()
        return _taken(hidden, self.chosen, -2) if layer == self.last + 1 else hidden

    def later_mask(self, mask: torch.Tensor | None, hidden: torch.Tensor, keys: int) -> torch.Tensor | None:
        """The mask of a layer in a later pass, whose cache is shorter than the first layers'."""
        if mask is not None:
            prompt = mask[..., : self.length].gather(-1, self.columns[:, None, None].expand(-1, *mask.shape[1:3], -1))
            return torch.cat([prompt & self.real[:, None, None], mask[..., self.length :]], -1)
        if self.whole:
            return None
        new = keys - self.columns.shape[1] + hidden.shape[1]
        return torch.nn.functional.pad(self.real, (0, new), value=True)[:, None, None]

    def pairs_missing(self, call: Call) -> int:
        """Pairs of query and key that plain attention would compute beside those of a call."""
        rows = zip(self.lengths, self.real.sum(1).tolist(), strict=True)
        if self.filling:
            spared = [causal_pairs(length, length) - causal_pairs(count, count) for length, count in rows]
        else:
            spared = [call.queries * (length - count) for length, count in rows]
        return sum(spared) * call.query.shape[1]

    def _causal(self) -> torch.Tensor:
        width = self.columns.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.real.device).tril()
        return (causal & self.real[:, None, :])[:, None]


def _taken(values: torch.Tensor, columns: torch.Tensor, dim: int) -> torch.Tensor:
    """Columns `[B, K]` of a tensor `[..., B, L]` or, with `dim` -2, `[..., B, L, D]`."""
    shape = list(values.shape)
    shape[dim - 1] = len(columns)
    index = columns if dim == -1 else columns[..., None]
    wanted = [*shape[:dim], columns.shape[1], *shape[dim:][1:]]
    return values.expand(shape).gather(dim, index.expand(wanted))


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
    """Give each layer what is kept for it in a call of `generate`, and nothing else, until the stack is closed.

    `drops` are the shares to keep after some layers, which the call is told.
    """

    def before(number: int, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = run()
        if active is None:
            return None
        cache: Any = kwargs.get("past_key_values")
        if number == 0:
            active.drops = drops
            active.kept = list(getattr(cache, ATTRIBUTE, ()))
            for kept in active.kept:
                kept.filling = False
        kept = active.kept_at(number)
        if kept is None:
            return None
        kwargs = dict(kwargs)
        hidden = args[0] if args else kwargs.pop("hidden_states")
        if kept.filling:
            hidden = kept.fill(number, hidden, kwargs)
            if cache is not None:
                setattr(cache, ATTRIBUTE, active.kept)
        else:
            keys = cache.get_seq_length(number)
            kwargs["attention_mask"] = kept.later_mask(kwargs.get("attention_mask"), hidden, keys)
        return (hidden, *args[1:]), kwargs

    for number, layer in enumerate(layers):
        hook(stack, layer, functools.partial(before, number))
