"""Keys that take other positions: a rotary embedding turns them by the difference."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mmaccel.cache.argument import cached
from mmaccel.decoding.unfit import MOVING
from mmaccel.machine import forked_rng

TRIED, BY = 4, 23  # tokens whose keys are tried out, and positions that they are turned by
TOLERANCE = 0.1  # of the size of the keys: a turn that is missing or wrong changes most of them, rounding far less


def turned(decoder: Any, key: torch.Tensor, places: torch.Tensor, back: bool = False) -> torch.Tensor:
    """Keys `[B, H, K, E]` turned by positions `[K]`, or back by them."""
    rotary = decoder.rotary_emb
    # spread over devices, the embedding may have one of its own
    cos, sin = (part.to(key.device) / rotary.attention_scaling for part in rotary(key.float(), places[None]))
    attention = decoder.layers[0].self_attn
    rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    rotated: torch.Tensor = rotate(key.float(), key.float(), cos, -sin if back else sin)[1]
    return rotated.to(key.dtype)


def has_turning_keys(decoder: Any, config: Any) -> bool:
    """Whether a decoder has one rotary embedding, the same for all texts, and layers that attend to all before."""
    kind = getattr(getattr(decoder, "rotary_emb", None), "rope_type", None)
    layers = DynamicCache(config=config).layers
    return isinstance(kind, str) and kind not in MOVING and all(type(layer) is DynamicLayer for layer in layers)


def why_unturned(decoder: Any, config: Any, name: str) -> str | None:
    """Why the keys of a model cannot take other positions; None if they can, which a pass over a few tokens shows."""
    if not has_turning_keys(decoder, config):
        return f"the keys of {name} cannot take other positions (no single rotary embedding, or layers with a window)"
    if next(decoder.parameters()).is_meta:
        return None
    try:
        is_same = _turns_like_the_model(decoder, config)
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:  # as of rotary embeddings of another form
        return f"the keys of {name} cannot be turned ({str(error).splitlines()[0]})"
    return None if is_same else f"some layers of {name} turn their keys otherwise than its rotary embedding"


@torch.no_grad()
def _turns_like_the_model(decoder: Any, config: Any) -> bool:
    """Whether turned keys are those that every layer computes at other positions."""
    device = next(decoder.parameters()).device
    tokens, places = torch.arange(1, 1 + TRIED, device=device)[None], torch.arange(TRIED, device=device)
    caches = []
    with forked_rng():  # a model in training draws what it drops
        for first in (0, BY):
            cache = DynamicCache(config=config)
            decoder(input_ids=tokens, position_ids=(places + first)[None], **cached(cache), use_cache=True)
            layers: list[Any] = list(cache.layers)
            caches.append([layer.keys for layer in layers])
    pairs = [(turned(decoder, key, torch.full_like(places, BY)), other) for key, other in zip(*caches, strict=True)]
    return all(float((key - other).norm()) <= TOLERANCE * float(other.norm()) for key, other in pairs)
