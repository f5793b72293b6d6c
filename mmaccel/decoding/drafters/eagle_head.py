"""The drafting head of EAGLE-3: a decoder layer that reads hidden states of the model it drafts for."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, PretrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from mmaccel import private

KINDS: dict[str, tuple[type[PretrainedConfig], Any]] = {
    "llama": (LlamaConfig, LlamaDecoderLayer),
    "qwen3": (Qwen3Config, Qwen3DecoderLayer),
}


def layers_read(layers: int) -> tuple[int, ...]:
    """Layers of a model of so many whose inputs are read, where a checkpoint does not say (EAGLE-3)."""
    return 2, layers // 2, layers - 3


class EagleHead(nn.Module):
    """Predict the token after a given one, from it and the hidden state of the token before (EAGLE-3, Li et al., 2025).

    Hidden states of three layers of the model, `[B, N, F]`, are joined by :meth:`join`; afterwards the head's own
    `[B, N, H]` stand in for those of tokens that the model has not read.

    Parameters
    ----------
    config
        Of the layer, "llama" or "qwen3", with the sizes `target_hidden_size` and `draft_vocab_size`, the `layers_read`
        of the model, the `window` of tokens that is attended to (None for all), and what :data:`SWITCHES` names.

    Attributes
    ----------
    embedding, output, draft_tokens
        Of the tokens `[V, H]`, of those that can be drafted `[D, H]`, and which of the vocabulary these are `[D]`; no
        part of the state. Embedding and output are None until :meth:`beside`, where they are the model's own.
    """

    SWITCHES: ClassVar[tuple[str, ...]] = (
        "norm_before_residual",  # the residual is the state after its norm
        "norm_before_fc",  # one norm over the states of all layers, before they are joined
        "fc_norm",  # a norm over the state of each
        "norm_output",  # what is handed on to the next step went through the last norm
    )

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.config = config
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
        self.rotary_emb: nn.Module = self._rotary()
        self.embedding: Tensor | None = None
        self.output: Tensor | None = None
        self.draft_tokens = torch.arange(config.draft_vocab_size)
        self._borrows: tuple[bool, bool] | None = None  # embedding and output, from the model
        self._shared = False, False  # embedding and output, with the model: the same memory
        self._at: tuple[torch.device, torch.dtype] | None = None

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    def _rotary(self) -> nn.Module:
        config: Any = self.config
        rotary: nn.Module = LlamaRotaryEmbedding(config)
        return rotary

    def beside(self, model: Any) -> EagleHead:
        """The head on the device and in the type of the model it drafts for, which may have moved."""
        weight = model.get_output_embeddings().weight
        at = weight.device, model.dtype
        if self._at == at:
            return self
        self._borrows = self._borrows or (self.embedding is None, self.output is None)
        self.rotary_emb = nn.Identity()
        self.to(*at)
        self.rotary_emb = self._rotary().to(weight.device)  # whose frequencies stay in float32
        self.draft_tokens = self.draft_tokens.to(weight.device)
        if self._borrows[0]:
            self.embedding = dense(model.get_input_embeddings().weight)
        if self._borrows[1]:
            whole = dense(weight)
            drafts_all = torch.equal(self.draft_tokens, torch.arange(len(whole), device=weight.device))
            self.output = whole if drafts_all else whole[self.draft_tokens]
        assert self.embedding is not None and self.output is not None
        self.embedding, self.output = self.embedding.to(*at), self.output.to(*at)
        self._shared = _is_same(self.embedding, model.get_input_embeddings().weight), _is_same(self.output, weight)
        self._at = at
        return self

    @property
    def bytes(self) -> int:
        """Of all that is not the model's own."""
        assert self.embedding is not None and self.output is not None
        both = zip((self.embedding, self.output), self._shared, strict=True)
        own = sum(matrix.nbytes for matrix, is_shared in both if not is_shared)
        return own + sum(value.nbytes for value in self.parameters())

    def join(self, states: Tensor) -> Tensor:
        """Hidden states of the model's layers `[B, N, F]` as one of the head's own, `[B, N, H]`."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm:
            parts = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        joined: Tensor = self.fc(states)
        return joined

    def forward(
        self, tokens: Tensor, hidden: Tensor, places: Tensor, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        """The head's states `[B, N, H]` for each token and the state before it.

        Parameters
        ----------
        tokens, hidden, places
            `[B, N]`, `[B, N, H]` of the tokens before, and their positions `[B, N]`.
        mask
            `[B, 1, N, M]`, which of the places that the cache then holds are seen; None for all, of one token a row.
        cache
            Gets the keys and values.
        """
        assert self.embedding is not None
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
        return self.norm(hidden) if self.config.norm_output else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the tokens of the draft vocabulary, `[..., D]`."""
        assert self.output is not None
        return functional.linear(hidden if self.config.norm_output else self.norm(hidden), self.output)


def _is_same(matrix: Tensor, weight: Any) -> bool:
    """Whether a matrix is the model's weight, and no copy of it."""
    return private.is_plain(weight) and matrix.data_ptr() == weight.data_ptr()


def dense(weight: Any) -> Tensor:
    """The values of a weight, gathered where processes hold parts; of a quantized one, few operations are known."""
    weight = (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach()
    return weight if type(weight).dequantize is Tensor.dequantize else weight.dequantize()


def _norm(config: PretrainedConfig, size: int) -> nn.Module:
    norm: nn.Module = LlamaRMSNorm(size, eps=config.rms_norm_eps)
    return norm
