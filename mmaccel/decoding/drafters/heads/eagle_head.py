"""The drafting head of EAGLE-3: a decoder layer that reads hidden states of the model it drafts for."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, PretrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from mmaccel.cache.argument import cached

from .draft_head import DraftHead

KINDS: dict[str, tuple[type[PretrainedConfig], Any]] = {
    "llama": (LlamaConfig, LlamaDecoderLayer),
    "qwen3": (Qwen3Config, Qwen3DecoderLayer),
}


def layers_read(layers: int) -> tuple[int, ...]:
    """Layers of a model of so many whose inputs are read, where a checkpoint does not say (EAGLE-3)."""
    return 2, layers // 2, layers - 3


class EagleHead(DraftHead):
    """Predict the token after a given one, from it and the hidden state of the token before (EAGLE-3, Li et al., 2025).

    It reads the hidden states of three layers of the model.

    Parameters
    ----------
    config
        Of the layer, "llama" or "qwen3", with the sizes `target_hidden_size` and `draft_vocab_size`, the `layers_read`
        of the model, the `window` of tokens that is attended to (None for all), and what :data:`SWITCHES` names.
    """

    SWITCHES: ClassVar[tuple[str, ...]] = (
        "norm_before_residual",  # the residual is the state after its norm
        "norm_before_fc",  # one norm over the states of all layers, before they are joined
        "fc_norm",  # a norm over the state of each
        "norm_output",  # what is handed on to the next step went through the last norm
    )

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config, config.draft_vocab_size)
        size, states = config.hidden_size, len(config.layers_read)
        kind = KINDS[config.model_type][1]
        self.fc = nn.Linear(states * config.target_hidden_size, size, bias=False)
        self.layers = nn.ModuleList([kind(config, number) for number in range(config.num_hidden_layers)])
        first: Any = self.layers[0]
        first.hidden_norm = _norm(config, size)
        for name in ("q_proj", "k_proj", "v_proj"):  # they read the token beside the state
            old = getattr(first.self_attn, name)
            setattr(first.self_attn, name, nn.Linear(2 * size, old.out_features, bias=old.bias is not None))
        self.input_norm = _norm(config, states * config.target_hidden_size) if config.norm_before_fc else None
        each = [_norm(config, config.target_hidden_size) for _ in range(states)] if config.fc_norm else []
        self.fc_norm = nn.ModuleList(each)
        self.norm = _norm(config, size)
        self.rotary_emb = self.rotary()

    def rotary(self, model: Any = None) -> nn.Module:
        config: Any = self.config
        return LlamaRotaryEmbedding(config)

    def join(self, states: Tensor) -> Tensor:
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm:
            parts = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(states)

    def forward(
        self, tokens: Tensor, hidden: Tensor, places: Tensor, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        turned = self.rotary_emb(hidden, places)
        first: Any = self.layers[0]
        embedded = first.input_layernorm(self.embedded(tokens, hidden))
        normed = first.hidden_norm(hidden)
        residual = normed if self.config.norm_before_residual else hidden
        seen = torch.cat([embedded, normed], -1)
        told = {"attention_mask": mask, "position_embeddings": turned, **cached(cache)}
        hidden = residual + first.self_attn(seen, **told)[0]
        hidden = hidden + first.mlp(first.post_attention_layernorm(hidden))
        for layer in self.layers[1:]:
            hidden = layer(hidden, position_ids=places, **told)
        return self.norm(hidden) if self.config.norm_output else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden if self.config.norm_output else self.norm(hidden))


def _norm(config: PretrainedConfig, size: int) -> nn.Module:
    return LlamaRMSNorm(size, eps=config.rms_norm_eps)
