"""What all heads have that draft for a model: its embedding, its output, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PretrainedConfig

from mmaccel import private

QUANTIZED = (  # what is refused, with "embedding" or "lm_head"
    "has its {} quantized, whose numbers a head reads: leave embedding and lm_head out, as bitsandbytes does unless"
    " llm_int8_skip_modules= names others"
)


class DraftHead(nn.Module):
    """Predict the token after a given one, from it and the hidden state of the token before.

    Hidden states of the model, `[B, N, F]`, are joined by :meth:`join`; afterwards the head's own `[B, N, H]` stand in
    for those of tokens that the model has not read.

    Parameters
    ----------
    config
        With the `window` of tokens that is attended to (None for all), and the `layers_read` of the model.
    draft_tokens
        How many tokens can be drafted, by default the first ones.

    Attributes
    ----------
    embedding, output, draft_tokens
        Of the tokens `[V, H]`, of those that can be drafted `[D, H]`, and which of the vocabulary these are `[D]`; no
        part of the state. Embedding and output are None until :meth:`beside`, where they are the model's own.
    """

    fc: nn.Linear
    rotary_emb: nn.Module

    def __init__(self, config: PretrainedConfig, draft_tokens: int) -> None:
        super().__init__()
        self.config = config
        self.embedding: Tensor | None = None
        self.output: Tensor | None = None
        self.draft_tokens = torch.arange(draft_tokens)
        self.drafted: Sequence[int] = ()  # the same, for many look-ups
        self._borrows: tuple[bool, bool] | None = None  # embedding and output, from the model
        self._theirs: tuple[Any, Any] = None, None  # those of the model, held so that no other gets their ids
        self._shared = False, False  # embedding and output, with the model: the same memory
        self._beside: tuple[Any, ...] | None = None  # where it is, and what these were

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    def rotary(self, model: Any) -> nn.Module:
        """Rotary embeddings, on any device."""
        raise TypeError(f"{type(self).__name__} does not say how tokens are turned")  # pragma: no cover

    def beside(self, model: Any) -> DraftHead:
        """The head on the device and in the type of its model, which may have moved, or have other tokens by now."""
        theirs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        at = theirs[1].device, model.dtype
        beside = at, *map(_mark, theirs)
        if self._beside == beside:
            return self
        self._borrows = self._borrows or (self.embedding is None, self.output is None)
        self.rotary_emb = nn.Identity()
        kept = {name: value for name, value in self.named_buffers() if value.dtype == torch.float32}
        self.to(*at)
        for name, value in kept.items():  # as a router's biases, which transformers keeps in float32 too
            module, _, last = name.rpartition(".")
            setattr(self.get_submodule(module), last, value.to(at[0]))
        self.rotary_emb = self.rotary(model).to(at[0])  # whose frequencies stay in float32
        self._take(theirs, model.config.get_text_config(decoder=True).vocab_size, at)
        self.drafted = self.draft_tokens.tolist()
        self._beside, self._theirs = beside, theirs
        return self

    def _take(self, theirs: tuple[Any, Any], vocabulary: int, at: tuple[torch.device, torch.dtype]) -> None:
        """Embedding and output: the model's own, or of the head as far as the vocabulary goes."""
        assert self._borrows is not None
        self.draft_tokens = self.draft_tokens.to(at[0])
        known = self.draft_tokens < vocabulary
        are_known = bool(known.all())
        self.draft_tokens = self.draft_tokens if are_known else self.draft_tokens[known]
        if self._borrows[0]:
            self.embedding = dense(theirs[0])
        if self._borrows[1]:
            whole, count = dense(theirs[1]), len(self.draft_tokens)
            are_first = torch.equal(self.draft_tokens, torch.arange(count, device=at[0]))
            self.output = whole[:count] if are_first else whole[self.draft_tokens]
        assert self.embedding is not None and self.output is not None
        self.embedding, self.output = self.embedding.to(*at), self.output.to(*at)
        if not (are_known or self._borrows[1]):
            self.output = self.output[known]
        if len(self.embedding) < vocabulary:  # nothing was learned of tokens that were added
            self.embedding = functional.pad(self.embedding, (0, 0, 0, vocabulary - len(self.embedding)))
        self._shared = _is_same(self.embedding, theirs[0]), _is_same(self.output, theirs[1])

    @property
    def bytes(self) -> int:
        """Of all that is not the model's own."""
        assert self.embedding is not None and self.output is not None
        both = zip((self.embedding, self.output), self._shared, strict=True)
        own = sum(matrix.nbytes for matrix, is_shared in both if not is_shared)
        return own + sum(value.nbytes for value in self.parameters())

    def join(self, states: Tensor) -> Tensor:
        """Hidden states of the model `[B, N, F]` as one of the head's own, `[B, N, H]`."""
        raise TypeError(f"{type(self).__name__} does not say what it reads")  # pragma: no cover

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
        raise TypeError(f"{type(self).__name__} does not say what it computes")  # pragma: no cover

    def embedded(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Embeddings `[B, N, H]` of tokens, in the type of another tensor."""
        assert self.embedding is not None
        return functional.embedding(tokens, self.embedding).to(like.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the tokens that can be drafted, `[..., D]`."""
        assert self.output is not None
        return functional.linear(hidden, self.output)


def _is_same(matrix: Tensor, weight: Any) -> bool:
    """Whether a matrix is the model's weight, and no copy of it."""
    return private.is_plain(weight) and matrix.data_ptr() == weight.data_ptr()


def _mark(weight: Any) -> tuple[Any, ...]:
    """What changes with a weight; to resize tied ones, transformers puts other values in the same parameter."""
    return id(weight), weight.shape, weight.data_ptr() if private.is_plain(weight) else 0


def has_values(weight: Any, size: int) -> bool:
    """Whether a matrix `[V, size]` holds its numbers: no bytes which only its layer reads, with scales beside them."""
    is_tensor = isinstance(weight, Tensor) and weight.shape[1:] == (size,)
    return is_tensor and weight.is_floating_point() and weight.dtype.itemsize > 1


def dense(weight: Any) -> Tensor:
    """The values of a weight, gathered where processes hold parts; of a quantized one, few operations are known."""
    weight = (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach()
    return weight if type(weight).dequantize is Tensor.dequantize else weight.dequantize()
