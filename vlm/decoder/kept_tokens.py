"""The tokens of a prompt that the later layers of a decoder work on, from its first pass to its last."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.patching import hook

from .call import Call, GenerateRun
from .rows import causal_pairs

ATTRIBUTE = "_mmaccel_kept"  # on the cache itself, so that a later turn knows, and its copies


class KeptTokens:
    """Tokens kept of a prompt, and what follows from them for masks and positions.

    Parameters
    ----------
    columns : int64 `[B, K]`
        Which tokens of the prompt, ascending, -1 on the left where a row keeps fewer.
    length
        Columns of the prompt, padding included.
    lengths
        Tokens of each row.
    """

    def __init__(self, columns: torch.Tensor, length: int, lengths: Sequence[int]) -> None:
        self.real, self.columns = columns >= 0, columns.clamp(min=0)
        self.length, self.lengths = length, list(lengths)
        self.whole = bool(self.real.all())
        self.filling = True  # whether the pass of the prompt is under way

    def fill(self, first: bool, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """Hidden states, and in `kwargs` positions and mask, of a layer in the pass of the prompt.

        `first` is the first layer after the tokens were chosen, which still gets all hidden states.
        """
        kwargs["position_embeddings"] = tuple(self._taken(part, -2) for part in kwargs["position_embeddings"])
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = self._taken(kwargs["position_ids"], -1)
        kwargs["attention_mask"] = None if self.whole else self._causal()
        return self._taken(hidden, -2) if first else hidden

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

    def _taken(self, values: torch.Tensor, dim: int) -> torch.Tensor:
        """The kept columns of a tensor `[..., B, L]` or, with `dim` -2, `[..., B, L, D]`."""
        shape = list(values.shape)
        shape[dim - 1] = len(self.columns)
        index = self.columns if dim == -1 else self.columns[..., None]
        wanted = [*shape[:dim], self.columns.shape[1], *shape[dim:][1:]]
        return values.expand(shape).gather(dim, index.expand(wanted))


def install(
    layers: Sequence[torch.nn.Module], last_whole: int, run: Callable[[], GenerateRun | None], stack: ExitStack
) -> None:
    """Give the layers after `last_whole` the kept tokens of a call of `generate` alone, until the stack is closed."""

    def before(number: int, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = run()
        if active is None:
            return None
        cache: Any = kwargs.get("past_key_values")
        if number == 0:
            active.last_whole = last_whole
            active.kept = getattr(cache, ATTRIBUTE, None)
            if active.kept is not None:
                active.kept.filling = False
        kept = active.kept
        if number <= last_whole or kept is None:
            return None
        kwargs = dict(kwargs)
        hidden = args[0] if args else kwargs.pop("hidden_states")
        if kept.filling:
            hidden = kept.fill(number == last_whole + 1, hidden, kwargs)
            if cache is not None:
                setattr(cache, ATTRIBUTE, kept)
        else:
            keys = cache.get_seq_length(number)
            kwargs["attention_mask"] = kept.later_mask(kwargs.get("attention_mask"), hidden, keys)
        return (hidden, *args[1:]), kwargs

    for number, layer in enumerate(layers):
        hook(stack, layer, functools.partial(before, number))
