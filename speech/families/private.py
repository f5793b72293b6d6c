"""Names of transformers' speech models that are not part of its API, in one place; a test holds each."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

# Ends of the names of weights that only training reads: checkpoints lack them, such as facebook/wav2vec2-base-960h.
TRAINED_WITH = ("masked_spec_embed",)


def mimi_decoder_parts(model: Any) -> tuple[nn.Module | None, nn.Module, nn.ModuleList]:
    """Upsampling layer, transformer and convolution layers of a `MimiModel`'s decoder.

    transformers 5.21 and later keep the three in one module; before, they hung on the model.
    """
    decoder = model.decoder
    if hasattr(decoder, "decoder_seanet"):
        return decoder.upsample, decoder.decoder_transformer, decoder.decoder_seanet.layers
    return model.upsample, model.decoder_transformer, decoder.layers


def sliding_window(window: tuple[int, int], query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Which keys a query of Moonshine v2's encoder attends to; frame numbers that broadcast, and a bool of each."""
    from transformers.models.moonshine_streaming.modeling_moonshine_streaming import sliding_window_mask_function

    return sliding_window_mask_function(window)(0, 0, query, key)


def transducer_state(config: Any) -> Any:
    """What the prediction network of a Parakeet or Nemotron transducer remembers of the text, at its start."""
    from transformers.models.parakeet.generation_parakeet import ParakeetRNNTDecoderCache

    return ParakeetRNNTDecoderCache(config)


def rotated(module: Any, query: Any, key: Any, position_embeddings: Any) -> tuple[Any, Any]:
    """Queries and keys `[B, H, T, D]` with the rotary embedding of that attention's model."""
    modeling: Any = sys.modules[type(module).__module__]
    rotate = modeling.apply_rotary_pos_emb
    return rotate(query, key, *position_embeddings)
