"""The attention that tokens receive in a vision tower that runs with SDPA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mmaccel import private
from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import intercept_attention, unfit_attention

AT_ONCE = 1 << 26  # attention scores to compute at once, which bounds the memory that they take


class Probe:
    """Record of one attention layer of a tower in one pass.

    Parameters
    ----------
    with_keys
        Whether to note its keys, which take far more memory than what its tokens received.

    Attributes
    ----------
    received : list of `[B, N]`
        The attention that each token received in each call of the layer, a mean over heads and queries.
    keys : list of `[B, N, E]`
        Its keys, all heads side by side; none if they are not noted.
    """

    def __init__(self, with_keys: bool = True) -> None:
        self.with_keys = with_keys
        self.received: list[torch.Tensor] = []
        self.keys: list[torch.Tensor] = []

    def __call__(
        self,
        original: Callable[..., Any],
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> Any:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        for row in range(len(query)):  # one frame at a time: the scores of all would be many times the tower's memory
            mask = None if attention_mask is None else attention_mask[min(row, len(attention_mask) - 1)]
            self.received.append(_received(query[row], key[row], scale, mask))
        if self.with_keys:
            self.keys.extend(key.transpose(1, 2).flatten(2))
        return original(module, query, key, value, attention_mask, scaling=scaling, **kwargs)

    def told(self) -> list[torch.Tensor]:
        """For each call what its tokens received and, where they are noted, their keys, float32 `[N, 1 + E]`."""
        received = [part[:, None] for part in self.received]
        return [torch.cat(pair, 1) for pair in zip(received, self.keys, strict=True)] if self.keys else received


@torch.no_grad()
def _received(query: torch.Tensor, key: torch.Tensor, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    """Column means of the attention of one frame, heads `[H, N, D]`; float32 `[N]`."""
    if len(key) < len(query):  # queries share keys
        key = key.repeat_interleave(len(query) // len(key), 0)
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], query.shape[1], -1)
    received = _column_sums(query, key, scale, mask)
    if mask is not None and query.shape[1] == key.shape[1]:  # padding attends to nothing that counts
        seen = received != 0
        if not bool(seen.all()):
            query = query[:, seen]
            received = _column_sums(query, key, scale, mask[..., seen, :])
    return received / query.shape[1]


def _column_sums(query: torch.Tensor, key: torch.Tensor, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    """What each key receives of all queries, a mean over heads; float32 `[N]`.

    Some queries at a time, since a large picture has ten thousand of them. In place, since new memory for each step of
    each frame takes five times as long.
    """
    total = torch.zeros(key.shape[1], device=key.device)
    step = max(1, AT_ONCE // (len(query) * key.shape[1]))
    for start in range(0, query.shape[1], step):
        some = slice(start, start + step)
        scores = (query[:, some] @ key.transpose(1, 2)).float().mul_(scale)
        if mask is not None:
            shown = mask[..., some, :]
            scores = scores.masked_fill_(~shown, float("-inf")) if shown.dtype == torch.bool else scores.add_(shown)
        total += torch.softmax(scores, -1, out=scores).mean(0).sum(0)
    return total


@contextmanager
def probed(module: torch.nn.Module, with_keys: bool = True) -> Iterator[Probe]:
    """Watch one attention layer of a tower inside this block; its result is bit-identical."""
    probe = Probe(with_keys)
    with ExitStack() as stack:
        intercept_attention(stack, [module], probe, in_thread=True)
        yield probe


def tower_attention(tower: torch.nn.Module) -> list[torch.nn.Module]:
    """The attention layers of a tower, in order."""
    return [
        module
        for module in tower.modules()
        if hasattr(module, "config")
        and not getattr(module, "is_causal", not hasattr(module, "scaling"))
        and private.uses_attention_interface(module)
        and not isinstance(module, torch.nn.ModuleList)
    ]


def require_readable(tower: torch.nn.Module, reader: str) -> None:
    """Raise if :func:`probed` cannot watch the layers of a tower."""
    layers = tower_attention(tower)
    if private.heads_are_split(layers):
        raise UnsupportedTargetError(
            f"{reader} ranks tokens by the attention in the vision tower, whose heads are split over processes"
            " (tp_plan), so that each would keep other tokens: vlm.VidCom2 does without"
        )
    unfit = unfit_attention(layers)
    if unfit is not None:
        raise UnsupportedTargetError(
            f"{reader} ranks tokens by the attention in the vision tower, which has attn_implementation={unfit!r}:"
            " load the model with attn_implementation='sdpa'"
        )


def blocks(tower: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a tower, in order, each with one of its attention layers; empty where they are not in one list."""
    attention = {*tower_attention(tower)}
    for module in tower.modules():
        layers = list(module) if isinstance(module, torch.nn.ModuleList) else []
        if layers and all(attention & {*layer.modules()} for layer in layers):
            return layers
    return []


def layer_of(layers: list[torch.nn.Module], feature_layer: int | list[int]) -> torch.nn.Module:
    """The attention layer just before the hidden states of that number, 0 being those before the first layer."""
    number = feature_layer[-1] if isinstance(feature_layer, list) else feature_layer
    return layers[number if number < 0 else max(0, number - 1)]
