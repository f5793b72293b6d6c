"""The drafting head of EAGLE-3: a decoder layer that reads hidden states of the model it drafts for."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, PretrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

KINDS: dict[str, tuple[type[PretrainedConfig], Any]] = {
    "llama": (LlamaConfig, LlamaDecoderLayer),
    "qwen3": (Qwen3Config, Qwen3DecoderLayer),
}


def layers_read(layers: int) -> tuple[int, ...]:
    """Layers of a model of so many whose inputs are read, where a checkpoint does not say (EAGLE-3)."""
    return 2, layers // 2, layers - 3


class EagleHead(nn.Module):
    """Predict the token after the next one, from that one and the hidden states before it (EAGLE-3, Li et al., 2025).

    Hidden states of three layers of the model, `[B, N, F]`, are joined by :meth:`join`; afterwards the head's own
    `[B, N, H]` stand in for those of tokens that the model has not read.

    Parameters
    ----------
    config
        Of the layer, "llama" or "qwen3", with the sizes `target_hidden_size` and `draft_vocab_size`, the layers that it
        `reads`, and the switches that :data:`SWITCHES` names.

    Attributes
    ----------
    embedding, output, draft_tokens
        Of the tokens `[V, H]`, of those that can be drafted `[D, H]`, and which of the vocabulary these are `[D]`; no
        part of the state.
    own
        Embedding and output of the checkpoint, by name; None for the model's own.
    """

    # In the order of the papers: the residual is what was normed; norms before the states are joined, of all or of
    # each; and what the head hands on is what its output reads.
    SWITCHES: ClassVar[tuple[str, ...]] = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config
        size, states = config.hidden_size, len(config.reads)
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
        rotary: Any = config
        self.rotary_emb = LlamaRotaryEmbedding(rotary)
        self.embedding = self.output = self.draft_tokens = torch.empty(0)
        self.own: dict[str, Tensor | None] = {"embed_tokens": None, "lm_head": None}
        self._at: tuple[torch.device, torch.dtype] | None = None

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    def beside(self, model: Any) -> EagleHead:
        """The head on the device and in the type of the model it drafts for, which may have moved."""
        matrix = model.get_output_embeddings().weight.detach()
        at = matrix.device, model.dtype
        if self._at != at:
            self.to(*at)
            self.draft_tokens = self.draft_tokens.to(matrix.device)
            embedding, output = self.own["embed_tokens"], self.own["lm_head"]
            self.embedding = (model.get_input_embeddings().weight.detach() if embedding is None else embedding).to(*at)
            self.output = (matrix[self.draft_tokens] if output is None else output).to(*at)
            self._at = at
        return self

    def join(self, states: Tensor) -> Tensor:
        """Hidden states of the model's layers `[B, N, F]` as one of the head's own, `[B, N, H]`."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm:
            parts = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        joined: Tensor = self.fc(states)
        return joined

    def forward(self, tokens: Tensor, hidden: Tensor, places: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """The head's states `[B, N, H]` for each token and the state before it.

        Parameters
        ----------
        tokens, hidden, places
            `[B, N]`, `[B, N, H]` of the tokens before, and their positions `[B, N]`.
        mask
            `[1, 1, N, M]`, which of the places that the cache then holds are seen.
        cache
            Gets the keys and values.
        """
        turned = self.rotary_emb(hidden, places)
        first: Any = self.layers[0]
        embedded = first.input_layernorm(functional.embedding(tokens, self.embedding).to(hidden.dtype))
        normed = first.hidden_norm(hidden)
        residual = normed if self.config.norm_before_residual else hidden
        seen = torch.cat([embedded, normed], -1)
        told = {"attention_mask": mask, "position_embeddings": turned, "past_key_values": cache}
        hidden = residual + first.self_attn(seen, **told)[0]
        hidden = hidden + first.mlp(first.post_attention_layernorm(hidden))
        for layer in self.layers[1:]:
            hidden = layer(hidden, position_ids=places, **told)
        return self.norm(hidden) if self.config.norm_output else hidden  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the tokens of the draft vocabulary, `[..., D]`."""
        return functional.linear(hidden if self.config.norm_output else self.norm(hidden), self.output)


def _norm(config: PretrainedConfig, size: int) -> nn.Module:
    norm: nn.Module = LlamaRMSNorm(size, eps=config.rms_norm_eps)
    return norm
