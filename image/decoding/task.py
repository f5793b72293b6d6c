"""ImageTask: one call of `generate` for pictures, as a model family sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmaccel.cache import RollbackCache
from mmaccel.cache.argument import cached
from mmaccel.decoding import gumbel
from mmaccel.decoding.setting import pass_device

from .layout import Layout
from .sampling import Sampling


@dataclass(kw_only=True)
class ImageTask(ABC):
    """What a decoder has to know of one call: the prompt, the layout, and the parts of the model.

    Token ids are local: `0 .. codes - 1` are image codes, and forced special tokens follow. Row order is
    `[conditional, unconditional]`, so `rows = branches * batch`.

    Attributes
    ----------
    model
        The transformers model.
    layout, sampling
        Order of the tokens, and how they are sampled.
    guidance
        Classifier-free guidance scale; used if `branches` is 2.
    batch, branches
        Pictures to make, and 2 with guidance (else 1).
    prompt_ids, prompt_mask
        `[rows, P]` each; the mask is False at left padding.
    codes, specials
        Image codes, and special tokens after them.
    as_dict
        Whether the result is that of `return_dict_in_generate=True`.
    """

    model: Any
    layout: Layout
    sampling: Sampling
    guidance: float
    batch: int
    branches: int
    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    codes: int
    specials: int
    as_dict: bool

    @property
    def device(self) -> torch.device:
        return self.prompt_mask.device

    @property
    def passes_on(self) -> torch.device:
        """Where tokens are read: at the model, where a call leaves them on the CPU, as transformers brings them."""
        ids = self.prompt_ids
        return pass_device(self.model, ids) if ids.device.type == "cpu" else ids.device

    @property
    def prompt_length(self) -> int:
        return int(self.prompt_mask.shape[1])

    @property
    def text_positions(self) -> torch.Tensor:
        """Positions of the prompt tokens, `[rows, P]`, as transformers counts them under left padding."""
        return (self.prompt_mask.long().cumsum(-1) - 1).clamp_min(0)

    def prefill(self, cache: RollbackCache) -> torch.Tensor:
        """Run the prompt; hidden states after its last token, `[rows, D]`."""
        embeddings = self.model.get_input_embeddings()(self.prompt_ids.to(self.passes_on))
        return self._states(embeddings, self.prompt_mask.long(), self.text_positions, cache)[:, -1]

    @abstractmethod
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Local token ids `[rows, W]` to embeddings `[rows, W, D]`."""

    def run(
        self,
        embeddings: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RollbackCache,
    ) -> torch.Tensor:
        """One forward over image tokens; `positions [rows, W]` count from the first image token."""
        return self._states(embeddings, mask, positions + self.prompt_mask.sum(-1, keepdim=True), cache)

    def _states(
        self,
        embeddings: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RollbackCache,
    ) -> torch.Tensor:
        """Hidden states of the language model, at positions as it counts them itself."""
        seen = {
            "attention_mask": None if mask is None else mask.to(embeddings.device),
            "position_ids": positions.to(embeddings.device),
        }
        output = language_model(self.model)(inputs_embeds=embeddings, **seen, **cached(cache), use_cache=True)
        return output.last_hidden_state

    @abstractmethod
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states to logits over the image codes only, `[..., codes]`."""

    @abstractmethod
    def codebook(self) -> torch.Tensor:
        """One embedding per image code, `[codes, D]`, for distances between codes."""

    @abstractmethod
    def result(self, tokens: torch.Tensor) -> Any:
        """What the model's own `generate` returns, from local ids `[batch, N]`."""

    def noise(self, generator: torch.Generator | None) -> torch.Tensor:
        """Gumbel noise `[batch, codes + specials]` of one position.

        `torch.multinomial`, with which the model's own generate samples, takes the largest of p / Exp(1). The same
        draws as -log(Exp(1)) give the same tokens.
        """
        return gumbel((self.batch, self.codes), generator, self.device)


Progress = Callable[[int, int], None]


def language_model(model: Any) -> Any:
    """The part of an image model that every pass goes through."""
    return getattr(model.model, "language_model", None) or model.model.text_model


def as_output(sequences: torch.Tensor) -> GenerateDecoderOnlyOutput:
    """What `return_dict_in_generate=True` asks for."""
    ids: Any = sequences  # annotated as a LongTensor, which torch's functions do not return
    return GenerateDecoderOnlyOutput(sequences=ids)
