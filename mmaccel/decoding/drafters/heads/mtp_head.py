"""The head that many checkpoints bring along: a layer of the model's own kind that predicts one token further."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig

from mmaccel.cache.argument import cached

from .draft_head import DraftHead


class MTPHead(DraftHead):
    """Predict the token after a given one with a layer of multi-token prediction (DeepSeek-V3, 2024).

    It reads the hidden state of the model behind its last norm. The layer was trained for the next token but one; for
    those behind it, it reads its own states.

    Parameters
    ----------
    config
        Of one layer, with what :class:`DraftHead` reads of it, and `hidden_first`: whether the hidden state stands
        before the embedding.
    model
        Of whose classes the layer and its norms are.
    """

    def __init__(self, config: PretrainedConfig, model: Any) -> None:
        super().__init__(config, len(model.get_output_embeddings().weight))
        decoder, size = model.get_decoder(), config.hidden_size
        kind = type(decoder.norm)
        self.final_norm, self.norm, self.hidden_norm, self.embedding_norm = (
            kind(size, eps=config.rms_norm_eps) for _ in range(4)
        )
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layer = type(decoder.layers[-1])(config, 0)
        kinds, rope = getattr(config, "layer_types", None) or [""], getattr(config, "rope_parameters", None) or {}
        self._turns = {"layer_type": kinds[0]} if isinstance(rope.get(kinds[0]), dict) else {}
        self.rotary_emb = nn.Identity()

    def rotary(self, model: Any) -> nn.Module:
        return type(model.get_decoder().rotary_emb)(config=self.config)

    def join(self, states: Tensor) -> Tensor:
        return self.final_norm(states)

    def forward(
        self, tokens: Tensor, hidden: Tensor, places: Tensor, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        both = [self.embedding_norm(self.embedded(tokens, hidden)), self.hidden_norm(hidden)]
        joined = self.fc(torch.cat(both[::-1] if self.config.hidden_first else both, -1))
        turned = self.rotary_emb(joined, places, **self._turns)
        told = {"position_ids": places, "position_embeddings": turned, **cached(cache)}
        found = self.layer(joined, attention_mask=mask, **told)
        return self.norm(found if isinstance(found, Tensor) else found[0])
