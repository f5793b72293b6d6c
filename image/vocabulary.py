"""Models that write image tokens with their text head: which ids are image codes, and how to read them."""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmaccel.errors import UnsupportedTargetError

from .adapter import left_pad
from .layout import Layout
from .task import ImageTask


class VocabularyTask(ImageTask):
    """A task whose local ids are a selection of the model's vocabulary.

    Attributes
    ----------
    ids
        Model id of each local id, `[codes + specials]`.
    prompt_ids
        `[rows, P]`.
    """

    ids: torch.Tensor
    prompt_ids: torch.Tensor
    as_dict: bool = False

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model.get_input_embeddings()(self.ids[tokens])

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        codes, head = self.ids[: self.codes], self.model.lm_head
        if type(head) is torch.nn.Linear and not head._forward_hooks:
            # Only the image codes: the text vocabulary is several times larger, and never sampled here.
            bias = None if head.bias is None else head.bias[codes]
            return torch.nn.functional.linear(hidden, self._code_rows(head.weight, codes), bias)
        return head(hidden)[..., codes]

    def _code_rows(self, weight: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        first, last = int(codes[0]), int(codes[-1])
        if last - first + 1 == len(codes):
            return weight[first : last + 1]  # a view
        return weight[codes]

    def codebook(self) -> torch.Tensor:
        return self.model.get_input_embeddings().weight[self.ids[: self.codes]]

    def result(self, tokens: torch.Tensor) -> Any:
        sequences = torch.cat([self.prompt_ids[: self.batch], self.ids[tokens]], 1)
        return GenerateDecoderOnlyOutput(sequences=sequences) if self.as_dict else sequences


def guided_prompts(
    kwargs: dict[str, Any], ids: torch.Tensor, mask: torch.Tensor, pad: int
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Guidance scale and the prompts of both branches, from the arguments that transformers takes.

    Takes `guidance_scale`, `negative_prompt_ids` and `negative_prompt_attention_mask` out of `kwargs`.
    Without a negative prompt the unconditional branch starts from the last prompt token, as there.
    """
    scale = kwargs.pop("guidance_scale", None)
    negative = kwargs.pop("negative_prompt_ids", None)
    negative_mask = kwargs.pop("negative_prompt_attention_mask", None)
    if scale is None or scale == 1:
        return 1.0, ids, mask
    if negative is None:
        negative = ids[:, -1:]
    if negative_mask is None:
        negative_mask = torch.ones_like(negative)
    if negative.shape[0] == 1:
        negative, negative_mask = (x.expand(ids.shape[0], -1) for x in (negative, negative_mask))
    if negative.shape[0] != ids.shape[0]:
        raise UnsupportedTargetError(
            f"{negative.shape[0]} negative prompts for {ids.shape[0]} prompts: give one, or one each"
        )
    return float(scale), *left_pad([ids, negative], [mask, negative_mask], pad)


def check_room(config: Any, layout: Layout) -> None:
    """Refuse a token limit that would cut the picture."""
    if config.max_new_tokens is not None and config.max_new_tokens < layout.length:
        raise UnsupportedTargetError(
            f"max_new_tokens={config.max_new_tokens} cuts the picture: it takes {layout.length} tokens,"
            f" pass max_new_tokens={layout.length} or leave it out"
        )
