"""Columns of a prompt that some layers of a decoder have, where others have more: their positions and masks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.patching import hook

# Arguments of a model with a value for each token of its prompt.
COLUMNS = ("mm_token_type_ids", "moe_mm_token_type_ids", "token_type_ids")


def before_layers(
    layers: Iterable[torch.nn.Module],
    act: Callable[[int, torch.Tensor, dict[str, Any]], torch.Tensor | None],
    stack: ExitStack,
) -> None:
    """Let ``act(number, hidden, kwargs)`` say what each layer of a decoder gets, until the stack is closed.

    It returns hidden states, and puts masks and positions that fit them into `kwargs`; None changes nothing.
    """

    def before(number: int, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kwargs = dict(kwargs)
        hidden = args[0] if args else kwargs.pop("hidden_states")
        hidden = act(number, hidden, kwargs)
        return None if hidden is None else ((hidden, *args[1:]), kwargs)

    for number, layer in enumerate(layers):
        hook(stack, layer, functools.partial(before, number))


@dataclass
class Columns:
    """What the layers after a drop have of a prompt.

    Attributes
    ----------
    index : int64 `[B, K]`
        Which columns of the prompt these are, ascending.
    real : bool `[B, K]`
        False on the left, where a row has fewer.
    length
        Columns of the prompt, padding included.
    """

    index: torch.Tensor
    real: torch.Tensor
    length: int

    def __post_init__(self) -> None:
        self.whole = bool(self.real.all())
        self._made: tuple[torch.Tensor | None, tuple[int, int], torch.Tensor | None] | None = None

    def fill(self, kwargs: dict[str, Any], attends: bool = True) -> None:
        """Put positions, types and mask of a layer in the pass of the prompt into its arguments; some do not attend."""
        kwargs["position_embeddings"] = tuple(taken(part, self.index, -2) for part in kwargs["position_embeddings"])
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = taken(kwargs["position_ids"], self.index, -1)
        for name in COLUMNS:
            if kwargs.get(name) is not None:
                kwargs[name] = taken(kwargs[name], self.index, -1)
        kwargs["attention_mask"] = self._seen(kwargs.get("attention_mask")) if attends else self.real

    def later_mask(self, mask: torch.Tensor | None, tokens: int, held: int) -> torch.Tensor | None:
        """The mask `[B, 1, M, N]` of a later pass over so many `tokens`, in a layer whose cache has `held` keys.

        Layers of one pass get the same tensor, so that what attention reads of it from a device is read once.
        """
        made = self._made
        if made is None or made[0] is not mask or made[1] != (tokens, held):
            self._made = made = mask, (tokens, held), self._later_mask(mask, tokens, held)
        return made[2]

    def _later_mask(self, mask: torch.Tensor | None, tokens: int, held: int) -> torch.Tensor | None:
        if mask is not None:
            repeats = max(1, len(mask) // len(self.real))  # of a cache whose rows have become several each
            index, real = (x.to(mask.device).repeat_interleave(repeats, 0) for x in (self.index, self.real))
            mask = mask.expand(len(index), -1, -1, -1)
            prompt = mask[..., : self.length].gather(-1, index[:, None, None].expand(-1, *mask.shape[1:3], -1))
            return torch.cat([_without(prompt, ~real), mask[..., self.length :]], -1)
        if self.whole:
            return None
        new = held - self.real.shape[1] + tokens
        return torch.nn.functional.pad(self.real, (0, new), value=True)[:, None, None]

    def _seen(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """What of a mask `[B, 1, L, L]` of the whole prompt is left."""
        if mask is None or mask.ndim != 4:
            return self._causal()
        index, real = self.index.to(mask.device)[:, None], self.real.to(mask.device)[:, None]
        rows, width = index.shape[0], index.shape[2]
        mask = mask.expand(rows, -1, -1, -1).gather(2, index[..., None].expand(-1, -1, -1, mask.shape[3]))
        mask = mask.gather(3, index[:, :, None].expand(-1, -1, width, -1))
        return _without(mask, ~real[:, 0])

    def _causal(self) -> torch.Tensor | None:
        """Causal mask of rows padded on the left, None where there is no padding."""
        if self.whole:
            return None
        width = self.real.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.real.device).tril()
        return (causal & self.real[:, None, :])[:, None]


def _without(mask: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """A mask `[B, 1, M, N]`, of truths or of what is added, in which no query sees the padding `[B, N]`."""
    hidden = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return mask.masked_fill(padding[:, None, None], hidden)


def taken(values: torch.Tensor, columns: torch.Tensor, dim: int) -> torch.Tensor:
    """Columns `[B, K]`, on any device, of a tensor `[..., B, L]` or, with `dim` -2, `[..., B, L, D]`."""
    shape = list(values.shape)
    shape[dim - 1] = len(columns)
    index = columns if dim == -1 else columns[..., None]
    wanted = [*shape[:dim], columns.shape[1], *shape[dim:][1:]]
    return values.expand(shape).gather(dim, index.to(values.device).expand(wanted))
