"""ImageTask: one call of `generate` for pictures, as a model family sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmaccel.cache import RollbackCache
from mmaccel.decoding import gumbel

from .layout import Layout
from .sampling import Sampling


@dataclass
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
    prompt_mask
        Bool `[rows, P]`, False at left padding.
    codes, specials
        Image codes, and special tokens after them.
    """

    model: Any
    layout: Layout
    sampling: Sampling
    guidance: float
    batch: int
    branches: int
    prompt_mask: torch.Tensor
    codes: int
    specials: int

    @property
    def device(self) -> torch.device:
        return self.prompt_mask.device

    @property
    def prompt_length(self) -> int:
        return int(self.prompt_mask.shape[1])

    @property
    def text_positions(self) -> torch.Tensor:
        """Positions of the prompt tokens, `[rows, P]`, as transformers counts them under left padding."""
        return (self.prompt_mask.long().cumsum(-1) - 1).clamp_min(0)

    @abstractmethod
    def prefill(self, cache: RollbackCache) -> torch.Tensor:
        """Run the prompt; hidden states after its last token, `[rows, D]`."""

    @abstractmethod
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Local token ids `[rows, W]` to embeddings `[rows, W, D]`."""

    @abstractmethod
    def run(
        self,
        embeddings: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RollbackCache,
    ) -> torch.Tensor:
        """One forward over image tokens; `positions [rows, W]` count from the first image token."""

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

    def cache(self, capacity: int) -> RollbackCache:
        return RollbackCache(self.model.config, capacity)


Progress = Callable[[int, int], None]


def as_output(sequences: torch.Tensor) -> GenerateDecoderOnlyOutput:
    """What `return_dict_in_generate=True` asks for."""
    ids: Any = sequences  # annotated as a LongTensor, which torch's functions do not return
    return GenerateDecoderOnlyOutput(sequences=ids)
