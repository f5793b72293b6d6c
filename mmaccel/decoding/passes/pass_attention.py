"""Attention of the passes that verify drafts: by the kernel on a GPU, without copied keys on a processor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn import functional

from mmaccel import private
from mmaccel.masks import additive
from mmaccel.patching import UNKNOWN_ARGUMENTS, hook, intercept_attention

from .slots import Slots
from .windows import own_attention

WIDEST = 256  # head that the Triton kernel holds
FEW = 8  # tokens of a pass up to which a processor is faster over those of all query heads of a group at once


class PassAttention:
    """What the layers of a decoder attend with while its drafts are verified.

    transformers repeats keys and values for every query head as soon as there is a mask. Here
    :func:`mmaccel.kernels.verify_attention` reads them once, with the tree as its `window_mask`; on a processor
    :func:`grouped_attention` does. Attention with capped scores, sinks, or values of another size than keys, and that
    of other methods, stays as it is. Exact within rounding.

    Parameters
    ----------
    model
        Whose decoder reads texts.
    stack
        That puts the model back as it was when it is closed.
    """

    def __init__(self, model: Any, stack: ExitStack) -> None:
        self._slots: Slots | None = None
        self._mask: torch.Tensor | None = None
        self._whole: torch.Tensor | None = None  # the same, where a processor reads one token that sees all keys
        self._parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None
        self._places: torch.Tensor | None = None
        # What is made of the masks of a pass, by their `id`; each is kept beside it, so that no other gets it.
        self._grouped: dict[tuple[int, int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        # passes of other threads, which the model makes beside those of this text, are none of these
        intercept_attention(stack, own_attention(model), self, in_thread=True)
        hook(stack, private.decoder_of(model), before=self._placed, after=self._forget, always=True, in_thread=True)

    def expect(self, mask: torch.Tensor, places: torch.Tensor, slots: Slots) -> None:
        """A pass with the mask `[B, 1, M, N]` of these slots follows, whose last `M` tokens are new, at `places`."""
        self._mask, self._places, self._slots, self._parts = mask, places, slots, None
        is_whole = mask.shape[2] == 1 and slots.is_whole and mask.device.type == "cpu" and _is_native(mask.device)
        self._whole = mask if is_whole else None

    def _placed(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Some models keep the positions that they are given, as HyperCLOVAX Vision, or count others, as EXAONE 4.5."""
        if self._places is None:
            return None
        return args, {**kwargs, "position_ids": self._places}

    def _forget(self, *_: Any) -> None:
        """The pass is over: another, such as one of a processor of logits for guidance, knows nothing of it."""
        self._slots = self._mask = self._whole = self._parts = self._places = None
        self._grouped = {}

    def __call__(
        self,
        original: Callable[..., Any],
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> Any:
        """For :func:`mmaccel.patching.intercept_attention`; `[B, M, Hq, D]`, and None for the weights."""
        output = None
        if self._slots is not None and self._slots.windows.sizes:
            windowed = self._slots.windows.mask(module.layer_idx, key.shape[2])
            attention_mask = attention_mask if windowed is None else windowed.to(query.device)
        if attention_mask is not None and not dropout and _is_plain(query, key, value, attention_mask, kwargs):
            if attention_mask is self._whole:  # of most passes: what is called for each layer anew is nowhere cached
                output = grouped_attention(query, key, value, None, scaling)
            else:
                output = self._attend(query, key, value, attention_mask, scaling)
        if output is None:
            return original(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
        return output.transpose(1, 2).contiguous(), None

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor | None:
        from mmaccel import kernels

        if not _is_native(query.device):
            takes = query.dtype.itemsize <= 4 and query.shape[3] <= WIDEST
            if mask is not self._mask or not takes:
                return None
            window, lengths, chosen = self._for_kernel(mask)
            tokens = None if chosen is None else chosen[:, None].expand(-1, key.shape[1], -1)
            return kernels.verify_attention(query, key, value, lengths, tokens, window, scale=scaling)[0]
        if query.device.type != "cpu" or (query.shape[1] == key.shape[1] and not _is_slow(query)):
            return None
        return grouped_attention(query, key, value, self._for_groups(mask, query, key), scaling)

    def _for_groups(self, mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """What :func:`grouped_mask` makes of a mask, once for all layers that share it."""
        which = id(mask), query.shape[1] // key.shape[1], query.dtype
        if which not in self._grouped:
            self._grouped[which] = mask, grouped_mask(mask, query, key)
        return self._grouped[which][1]

    def _for_kernel(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The tree `[B, M, M]`, tokens in use, and which of them are any `[B, N]`; the same in all layers."""
        assert self._slots is not None
        if self._parts is None:
            new, total = mask.shape[2:]
            lengths = torch.full((len(mask),), total, dtype=torch.int32, device=mask.device)
            chosen = None if self._slots.is_whole else _places(mask)
            self._parts = mask[:, 0, :, total - new :].contiguous(), lengths, chosen
        return self._parts


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float | None = None
) -> torch.Tensor:
    """Attention `[B, Hq, M, D]` on a processor, with keys and values `[B, Hk, N, D]` that are read where they are.

    Without a mask all are seen. Of few tokens all query heads of a group are rows of one: torch's own loop takes one
    head after the other, and for a single row in bfloat16 it takes as long as for six. Figures are in
    docs/benchmarks/kernels.

    Examples
    --------
    >>> query, keys = torch.randn(1, 6, 2, 8), torch.randn(1, 3, 5, 8)
    >>> mask = grouped_mask(torch.ones(1, 1, 2, 5, dtype=torch.bool), query, keys)
    >>> grouped_attention(query, keys, keys, mask).shape
    torch.Size([1, 6, 2, 8])
    """
    attend = functional.scaled_dot_product_attention
    batch, heads, tokens, size = query.shape
    if mask is not None and mask.shape[2] == tokens:
        return attend(query, key, value, mask, scale=scale, enable_gqa=True)
    if heads == key.shape[1]:
        if mask is None and not _is_slow(query):
            return attend(query, key, value, scale=scale)
        return attend(query.expand(-1, -1, 2, -1), key, value, mask, scale=scale)[:, :, :1]
    rows = query.reshape(batch, key.shape[1], -1, size)  # of each group, head after head
    return attend(rows, key, value, mask, scale=scale).reshape(batch, heads, tokens, size)


def grouped_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A bool mask `[B, 1, M, N]` for :func:`grouped_attention`, as torch adds it: `[B, 1, G * M, N]` of `G` heads."""
    heads = query.shape[1] // key.shape[1]
    if heads == 1 and _is_slow(query):
        heads = 2
    elif query.shape[2] > FEW or mask.shape[1] > 1:
        heads = 1
    return additive(mask, query.dtype).repeat(1, 1, heads, 1)


def _is_native(device: torch.device) -> bool:
    """Whether kernels are those of torch there."""
    from mmaccel import kernels

    return kernels.choose(device) == "native"


def _is_slow(query: torch.Tensor) -> bool:
    """Whether torch's own attention is slower with it than with twice as many rows."""
    return query.dtype == torch.bfloat16 and query.shape[2] == 1


def _places(mask: torch.Tensor) -> torch.Tensor:
    """The keys that any query of a row sees, int32 `[B, N]` ascending, then -1."""
    hidden = ~mask[:, 0].any(1)
    order = torch.argsort(hidden.to(torch.uint8), dim=1, stable=True)
    return order.masked_fill(hidden.gather(1, order), -1).int()


def _is_plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether attention is softmax over the keys that the mask shows, and nothing else."""
    shapes = k.shape == v.shape and q.shape[1] % k.shape[1] == 0 and mask.shape[2:] == (q.shape[2], k.shape[2])
    if not shapes or mask.dtype != torch.bool:
        return False
    return kwargs.keys().isdisjoint(UNKNOWN_ARGUMENTS) or all(kwargs.get(name) is None for name in UNKNOWN_ARGUMENTS)
