"""Names of transformers' speech models that are not part of its API, in one place; a test holds each."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


def mimi_decoder_parts(model: Any) -> tuple[nn.Module | None, nn.Module, nn.ModuleList]:
    """Upsampling layer, transformer and convolution layers of a `MimiModel`'s decoder.

    transformers 5.21 and later keep the three in one module; before, they hung on the model.
    """
    decoder = model.decoder
    if hasattr(decoder, "decoder_seanet"):
        return decoder.upsample, decoder.decoder_transformer, decoder.decoder_seanet.layers
    return model.upsample, model.decoder_transformer, decoder.layers


def last_self_attention(encoder: Any) -> Any:
    """Self-attention of the last layer of a Whisper or Moonshine encoder; it has `q_proj`, `k_proj`, `head_dim`."""
    return encoder.layers[-1].self_attn


def rotated(module: Any, query: Any, key: Any, position_embeddings: Any) -> tuple[Any, Any]:
    """Queries and keys `[B, H, T, D]` with the rotary embedding of that attention's model."""
    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb  # type: ignore[attr-defined]
    return rotate(query, key, *position_embeddings)  # type: ignore[no-any-return]
