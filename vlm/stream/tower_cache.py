"""STC's cacher: a vision tower computes anew only those tokens of most frames that have changed."""

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
class Computed:
    """What one layer computed of some frames, each `[F, N, E]`."""

    key: torch.Tensor
    value: torch.Tensor
    attention: torch.Tensor
    mlp: torch.Tensor

    def of(self, rows: list[int]) -> Computed:
        """That of some of them, in memory of its own."""
        return Computed(*(part[rows] for part in self._parts()))

    def then(self, others: Computed) -> Computed:
        """These, and behind them others."""
        return Computed(*(torch.cat(pair) for pair in zip(self._parts(), others._parts(), strict=True)))

    def _parts(self) -> tuple[torch.Tensor, ...]:
        return self.key, self.value, self.attention, self.mlp


class TowerCache:
    """What the layers of a tower computed of the last frame that was computed whole.

    Parameters
    ----------
    layers
        Encoder layers of a SigLIP or CLIP tower.
    refresh
        Share of the tokens of other frames that is computed anew, those whose keys have changed most; 1 for all,
        which is exact.
    interval
        Every how many frames one is computed whole.

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
        self.references: dict[int, Computed] = {}
        self.frames = 0
        self.computed = self.plain = 0

    def reset(self) -> None:
        """Forget the reference frame: the next one is the first; what was computed goes on being counted."""
        self.references.clear()
        self.frames = 0

    def is_whole(self, number: int) -> bool:
        """Whether all of a frame is computed, the first being number 0."""
        return number % self.interval == 0 or self.refresh == 1

    @contextmanager
    def chunk(self, frames: int) -> Iterator[None]:
        """Let the tower reuse what is known while this thread encodes so many frames.

        Its layers are left as they were; whoever else would wrap them meanwhile has to wait.
        """
        made: dict[int, Computed] = {}
        with ExitStack() as stack:
            for number, layer in enumerate(self.layers):
                wrap_in_thread(stack, layer, "forward", _Forward(self, number, layer, made))
            yield
        self.references |= made
        self.frames += frames


class _Forward:
    """The forward of one layer during one chunk."""

    def __init__(self, cache: TowerCache, number: int, layer: Any, made: dict[int, Computed]) -> None:
        self.cache, self.number, self.layer, self.made = cache, number, layer, made

    def __call__(
        self, original: Any, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        cache, count = self.cache, len(hidden_states)
        cache.plain += count * hidden_states.shape[1]
        whole = [row for row in range(count) if cache.is_whole(cache.frames + row)]
        others = [row for row in range(count) if row not in whole]
        if not whole:
            return self._changed(hidden_states, cache.references[self.number].of([0] * count))
        done, made = self._all(hidden_states[whole] if others else hidden_states)
        self.made[self.number] = made.of([-1])
        if not others:
            return done
        latest = [sum(first < row for first in whole) - 1 for row in others]
        known = made.of([place for place in latest if place >= 0])
        if before := latest.count(-1):  # as many frames before the first whole one
            known = cache.references[self.number].of([0] * before).then(known)
        result = torch.empty_like(hidden_states)
        result[whole], result[others] = done, self._changed(hidden_states[others], known)
        return result

    def _all(self, hidden: torch.Tensor) -> tuple[torch.Tensor, Computed]:
        layer = self.layer
        self.cache.computed += hidden.shape[0] * hidden.shape[1]
        normed = layer.layer_norm1(hidden)
        attention = layer.self_attn
        query, key, value = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
        attended = attention.out_proj(self._attend(query, key, value))
        middle = hidden + attended
        mlp = layer.mlp(layer.layer_norm2(middle))
        return middle + mlp, Computed(key, value, attended, mlp)

    def _changed(self, hidden: torch.Tensor, known: Computed) -> torch.Tensor:
        """The output for frames of which each is held against a known one, whose memory it takes."""
        layer = self.layer
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
        result: torch.Tensor = middle + _put(known.mlp, index, layer.mlp(layer.layer_norm2(inner)))
        return result

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attention = self.layer.self_attn
        q, k, v = (x.unflatten(2, (-1, attention.head_dim)).transpose(1, 2) for x in (query, key, value))
        return scaled_dot_product_attention(q, k, v, scale=attention.scale).transpose(1, 2).flatten(2)


def _put(known: torch.Tensor, index: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """What is known of each token `[F, N, E]`, with the fresh ones `[F, count, E]` put at their places."""
    return known.scatter_(1, index.expand(-1, -1, fresh.shape[2]), fresh)
