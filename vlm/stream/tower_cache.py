"""STC's cacher: a vision tower computes anew only those tokens of most frames that have changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch.nn.functional import normalize, scaled_dot_product_attention

from mmaccel.cache.model_hash import adapters_of
from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import wrap_in_thread

PARTS = ("layer_norm1", "layer_norm2", "self_attn", "mlp")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


@dataclass
class Computed:
    """What one layer computed of some frames.

    Attributes
    ----------
    unit : `[F, N, E]`
        Keys, of length 1.
    value : `[F, N, E]`
        Values.
    change : `[F, N, E]`
        What the layer adds to its input.
    """

    unit: torch.Tensor
    value: torch.Tensor
    change: torch.Tensor

    def last(self) -> Computed:
        """That of the last frame, in memory of its own."""
        return Computed(*(part[-1:].clone() for part in self._parts()))

    def then(self, others: Computed) -> Computed:
        """These, and behind them others."""
        return Computed(*(torch.cat(pair) for pair in zip(self._parts(), others._parts(), strict=True)))

    def _parts(self) -> tuple[torch.Tensor, ...]:
        return self.unit, self.value, self.change


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
        self._adapters: list[dict[str, str]] = []  # by which the reference frame was computed

    def reset(self) -> None:
        """Forget the reference frame: the next one is the first; what was computed goes on being counted."""
        self.references.clear()
        self.frames = 0

    def is_whole(self, number: int) -> bool:
        """Whether all of a frame is computed, the first being number 0."""
        return number % self.interval == 0 or self.refresh == 1

    @contextmanager
    def chunk(self, frames: int) -> Iterator[list[int]]:
        """Let the tower reuse what is known while this thread encodes so many frames, in the order that this gives.

        Its layers are left as they were; whoever else would wrap them meanwhile has to wait.
        """
        adapters = [adapters_of(layer) for layer in self.layers]
        if adapters != self._adapters:
            self.reset()
        self._adapters = adapters
        whole = [row for row in range(frames) if self.is_whole(self.frames + row)]
        others = [row for row in range(frames) if row not in whole]
        latest = [sum(first < row for first in whole) for row in others]  # 0: the reference frame of before
        made: dict[int, Computed] = {}
        with ExitStack() as stack:
            for number, layer in enumerate(self.layers):
                wrap_in_thread(stack, layer, "forward", _Forward(self, number, layer, made, len(whole), latest))
            yield whole + others
        self.references |= made
        self.frames += frames


class _Forward:
    """The forward of one layer during one chunk: first so many frames as a whole, then others, held against known ones.

    Of each of these `latest` tells which it is: 0 for the reference frame of before, 1 for the first whole one.
    """

    def __init__(
        self, cache: TowerCache, number: int, layer: Any, made: dict[int, Computed], whole: int, latest: list[int]
    ) -> None:
        self.cache, self.number, self.layer, self.made = cache, number, layer, made
        self.whole, self.latest = whole, latest

    def __call__(
        self, original: Any, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        self.cache.plain += hidden_states.shape[0] * hidden_states.shape[1]
        done: list[torch.Tensor] = []
        known = [self.cache.references[self.number]] if 0 in self.latest else []
        if self.whole:
            whole, made = self._all(hidden_states[: self.whole])
            self.made[self.number] = made.last()
            done, known = [whole], [*known, made]
        if self.latest:
            rows = [number - min(self.latest) for number in self.latest]
            done.append(self._changed(hidden_states[self.whole :], reduce(Computed.then, known), rows))
        return torch.cat(done) if len(done) > 1 else done[0]

    def _all(self, hidden: torch.Tensor) -> tuple[torch.Tensor, Computed]:
        layer = self.layer
        self.cache.computed += hidden.shape[0] * hidden.shape[1]
        normed = layer.layer_norm1(hidden)
        attention = layer.self_attn
        query, key, value = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
        attended = attention.out_proj(self._attend(query, key, value))
        middle = hidden + attended
        mlp = layer.mlp(layer.layer_norm2(middle))
        return middle + mlp, Computed(normalize(key, dim=-1), value, attended + mlp)

    def _changed(self, hidden: torch.Tensor, known: Computed, rows: list[int]) -> torch.Tensor:
        """The output for frames of which each is held against a row of what is known."""
        layer = self.layer
        normed = layer.layer_norm1(hidden)
        key = layer.self_attn.k_proj(normed)
        count = max(1, round(self.cache.refresh * hidden.shape[1]))
        self.cache.computed += len(hidden) * count
        # half precision tells few cosines near 1 apart, and rounds the length of a unit
        alike = torch.cosine_similarity(key.float(), known.unit[rows].float(), dim=-1)
        index = alike.sort(dim=-1, stable=True).indices[:, :count, None].expand(-1, -1, hidden.shape[2])
        fresh = normed.gather(1, index)
        value = known.value[rows]  # autocast may compute in other types than before
        value.scatter_(1, index, layer.self_attn.v_proj(fresh).to(value.dtype))
        attended = layer.self_attn.out_proj(self._attend(layer.self_attn.q_proj(fresh), key, value))
        middle = hidden.gather(1, index) + attended
        result = known.change[rows] + hidden
        return result.scatter_(1, index, (middle + layer.mlp(layer.layer_norm2(middle))).to(result.dtype))

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attention = self.layer.self_attn
        q, k, v = (x.unflatten(2, (-1, attention.head_dim)).transpose(1, 2) for x in (query, key, value))
        return scaled_dot_product_attention(q, k, v, scale=attention.scale).transpose(1, 2).flatten(2)
