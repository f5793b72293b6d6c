"""The draft model of DFlash: layers that fill a whole block of masks at once, beside keys of the model's states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from mmaccel.cache.argument import cached
from mmaccel.errors import UnsupportedTargetError

from .draft_head import DraftHead

Sees = tuple[int | None, bool]  # a window of tokens, None for all, and whether later tokens of a block are hidden


def layers_read(layers: int, count: int) -> tuple[int, ...]:
    """Layers of a model of so many whose inputs are read, where a draft model of `count` layers does not say."""
    if count == 1:
        return (layers // 2 + 1,)
    return tuple(1 + round(1 + number * (layers - 4) / (count - 1)) for number in range(count))


class DFlashHead(DraftHead):
    """Predict a block of tokens in one pass, from the last token and masks (DFlash, Chen et al., 2026).

    Hidden states of several layers of the model, `[B, N, F]`, are joined by :meth:`join`, and every layer makes keys
    and values of them, which stay in its cache (:meth:`read`). The tokens of a block see these and each other.

    Parameters
    ----------
    config
        Of the layers, with the sizes `target_hidden_size` and `draft_vocab_size`, the `layers_read` of the model, the
        `block` of tokens that is filled at once, the last one of the text included, the `mask_token`, whether the place
        of that last one guesses too (`from_anchor`), what each layer `sees`, what embeddings and logits are multiplied
        with (`embedding_scale`, `logit_scale`), and the `softcap` of the logits, None for none.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.draft_vocab_size)
        size = config.hidden_size
        self.fc = nn.Linear(len(config.layers_read) * config.target_hidden_size, size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(size, eps=config.rms_norm_eps)
        layers: list[Any] = [Qwen3DecoderLayer(config, number) for number in range(config.num_hidden_layers)]
        for layer in layers:
            layer.self_attn.is_causal = False  # without a mask all is seen
        self.layers = nn.ModuleList(layers)
        self.norm = Qwen3RMSNorm(size, eps=config.rms_norm_eps)
        self.rotary_emb = self.rotary()

    def rotary(self, model: Any = None) -> nn.Module:
        config: Any = self.config
        return Qwen3RotaryEmbedding(config)

    def _take(self, theirs: tuple[Any, Any], vocabulary: int, at: tuple[torch.device, torch.dtype]) -> None:
        super()._take(theirs, vocabulary, at)
        assert self.embedding is not None
        mask, count = self.config.mask_token, len(self.embedding)
        if mask >= count:
            raise UnsupportedTargetError(
                f"DFlash's draft model fills places of token {mask}, its mask, and the model has embeddings of {count}"
                f" tokens: keep {mask + 1} or more of them, or use vlm.FusedDraft()"
            )

    def join(self, states: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(states))

    def read(self, states: Tensor, places: Tensor, cache: DynamicCache) -> None:
        """Add keys and values of the model's states `[B, N, F]` at positions `[B, N]` to a cache."""
        joined = self.join(states)
        turned = self.rotary_emb(joined, places)
        for number, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            shape = (*joined.shape[:2], -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(joined).view(shape)).transpose(1, 2)
            values = attention.v_proj(joined).view(shape).transpose(1, 2)
            cache.update(apply_rotary_pos_emb(keys, keys, *turned)[1], values, number)

    def forward(self, tokens: Tensor, hidden: Any, places: Tensor, mask: Any, cache: DynamicCache) -> Tensor:
        """States `[B, N, H]` at the places of a block.

        Parameters
        ----------
        tokens, places
            The last one of each text and masks, `[B, N]`, and their positions `[B, N]`.
        hidden
            Not read: those of the text are in the cache.
        mask
            By what layers see: `[B, 1, N, M]`, which of the places that the cache then holds are seen; None for all.
        cache
            Gets the keys and values of the block, too.
        """
        found = self.embedded(tokens, self.fc.weight)
        turned = self.rotary_emb(found, places)
        for layer, sees in zip(self.layers, self.config.sees, strict=True):
            found = layer(found, attention_mask=mask[sees], position_embeddings=turned, **cached(cache))
        return self.norm(found)

    def embedded(self, tokens: Tensor, like: Tensor) -> Tensor:
        return super().embedded(tokens, like) * self.config.embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        found, cap = super().logits(hidden) * self.config.logit_scale, self.config.softcap
        return found if cap is None else cap * torch.tanh(found / cap)
