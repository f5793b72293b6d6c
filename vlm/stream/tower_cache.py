"""STC's cacher: a vision tower computes anew only those tokens of a frame that have changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cosine_similarity, scaled_dot_product_attention

from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import wrap_in_thread

PARTS = ("layer_norm1", "layer_norm2", "self_attn", "mlp")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


@dataclass
class Reference:
    """What one layer computed of the reference frame, each `[1, N, E]`."""

    key: torch.Tensor
    value: torch.Tensor
    attention: torch.Tensor
    mlp: torch.Tensor


class TowerCache:
    """What the layers of a tower computed of the last frame of the last full chunk.

    Parameters
    ----------
    layers
        Encoder layers of a SigLIP or CLIP tower.
    refresh
        Share of the tokens of other frames that is computed anew, those whose keys have changed most; 1 for all,
        which is exact.
    interval
        Every how many chunks all is computed.

    Attributes
    ----------
    computed, plain
        Tokens times layers that were computed, and that there were.

    Raises
    ------
    UnsupportedTargetError
        If the layers are of another kind.
    """

    def __init__(self, layers: Any, refresh: float = 0.25, interval: int = 2) -> None:
        self.layers, self.refresh, self.interval = list(layers), refresh, interval
        for layer in self.layers:
            if not all(hasattr(layer, part) for part in PARTS) or not all(
                hasattr(layer.self_attn, part) for part in PROJECTIONS
            ):
                raise UnsupportedTargetError(
                    f"the tower has layers of {type(layer).__name__}: its work can be reused in SigLIP and CLIP only;"
                    " give the stream vlm.StreamingCompression(refresh=1.0)"
                )
        self.references: dict[int, Reference] = {}
        self.chunks = 0
        self.computed = self.plain = 0

    def reset(self) -> None:
        """Forget the reference frame: the next chunk is the first; what was computed goes on being counted."""
        self.references.clear()
        self.chunks = 0

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """Let the tower reuse what is known while this thread encodes one chunk of frames.

        Its layers are left as they were; whoever else would wrap them meanwhile has to wait.
        """
        full = self.chunks % self.interval == 0 or self.refresh == 1
        with ExitStack() as stack:
            for number, layer in enumerate(self.layers):
                wrap_in_thread(stack, layer, "forward", _Forward(self, number, layer, full))
            yield
        self.chunks += 1


class _Forward:
    """The forward of one layer during one chunk."""

    def __init__(self, cache: TowerCache, number: int, layer: Any, full: bool) -> None:
        self.cache, self.number, self.layer, self.full = cache, number, layer, full

    def __call__(
        self, original: Any, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        tokens = hidden_states.shape[0] * hidden_states.shape[1]
        self.cache.plain += tokens
        if self.full:
            self.cache.computed += tokens
            return self._all(hidden_states)
        return self._changed(hidden_states)

    def _all(self, hidden: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        normed = layer.layer_norm1(hidden)
        attention = layer.self_attn
        query, key, value = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
        attended = attention.out_proj(self._attend(query, key, value))
        middle = hidden + attended
        mlp = layer.mlp(layer.layer_norm2(middle))
        last = (x[-1:].clone() for x in (key, value, attended, mlp))
        self.cache.references[self.number] = Reference(*last)
        result: torch.Tensor = middle + mlp
        return result

    def _changed(self, hidden: torch.Tensor) -> torch.Tensor:
        layer, known = self.layer, self.cache.references[self.number]
        normed = layer.layer_norm1(hidden)
        key = layer.self_attn.k_proj(normed)
        count = max(1, round(self.cache.refresh * hidden.shape[1]))
        self.cache.computed += len(hidden) * count
        alike = cosine_similarity(key, known.key, dim=-1)
        index = alike.sort(dim=-1, stable=True).indices[:, :count, None]
        fresh = normed.gather(1, index.expand(-1, -1, normed.shape[2]))
        value = _put(known.value, index, layer.self_attn.v_proj(fresh))
        attended = layer.self_attn.out_proj(self._attend(layer.self_attn.q_proj(fresh), key, value))
        middle = hidden + _put(known.attention, index, attended)
        inner = middle.gather(1, index.expand(-1, -1, middle.shape[2]))
        return middle + _put(known.mlp, index, layer.mlp(layer.layer_norm2(inner)))

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attention = self.layer.self_attn
        q, k, v = (x.unflatten(2, (-1, attention.head_dim)).transpose(1, 2) for x in (query, key, value))
        return scaled_dot_product_attention(q, k, v, scale=attention.scale).transpose(1, 2).flatten(2)


def _put(known: torch.Tensor, index: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """What is known of each token `[1, N, E]`, with the fresh ones `[F, count, E]` at their places."""
    full = known.expand(len(fresh), -1, -1).clone()
    return full.scatter_(1, index.expand(-1, -1, fresh.shape[2]), fresh)
