"""Models that write image tokens with their text head: which ids are image codes, and how to read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from mmaccel.decoding import gumbel
from mmaccel.decoding.setting import setting
from mmaccel.errors import UnsupportedTargetError
from mmaccel.kernels import skinny_linear
from mmaccel.linears.skinny import is_plain_linear
from mmaccel.private import generation_settings

from ..decoding.layout import Layout
from ..decoding.task import ImageTask, as_output
from .adapter import left_pad, prompt_of

UNASKED_LENGTH = 20  # `max_length` of transformers where nobody gives one


@dataclass(kw_only=True)
class VocabularyTask(ImageTask):
    """A task whose local ids are a selection of the model's vocabulary.

    Attributes
    ----------
    ids
        Model id of each local id, `[codes + specials]`.
    own_prompt
        `[batch, p]`, what the result begins with.
    """

    ids: torch.Tensor
    own_prompt: torch.Tensor

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model.get_input_embeddings()(self.ids[tokens].to(self.passes_on))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        codes, head = self.ids[: self.codes].to(hidden.device), self.model.lm_head
        if is_plain_linear(head):
            # Only the image codes: the text vocabulary is several times larger, and never sampled here.
            bias = None if head.bias is None else head.bias[codes]
            return skinny_linear(hidden, head.weight[codes if self._code_rows is None else self._code_rows], bias)
        return head(hidden)[..., codes]

    @cached_property
    def _code_rows(self) -> slice | None:
        """The rows of the codes in a weight where they are one behind the other, and so a view; read back once."""
        first, last = int(self.ids[0]), int(self.ids[self.codes - 1])
        return slice(first, last + 1) if last - first + 1 == self.codes else None

    def noise(self, generator: torch.Generator | None) -> torch.Tensor:
        # the model's own generate samples over all it could say, text included
        return gumbel((self.batch, self._vocabulary), generator, self.device)[:, self.ids]

    @property
    def _vocabulary(self) -> int:
        """How many tokens the model tells apart."""
        config = self.model.config.get_text_config()
        return int(getattr(self.model.lm_head, "out_features", config.vocab_size))

    def codebook(self) -> torch.Tensor:
        return self.model.get_input_embeddings()(self.ids[: self.codes].to(self.passes_on))

    def result(self, tokens: torch.Tensor) -> Any:
        sequences = torch.cat([self.own_prompt, self.ids[tokens]], 1)
        return as_output(sequences) if self.as_dict else sequences


@dataclass
class Prompts:
    """Prompts of one call, for both branches of guidance.

    Attributes
    ----------
    config
        The filled `GenerationConfig`.
    own
        The caller's prompt ids, one row per picture, as the result begins with them.
    ids, mask
        `[rows, P]`, conditional rows before unconditional ones.
    """

    config: Any
    guidance: float
    own: torch.Tensor
    ids: torch.Tensor
    mask: torch.Tensor

    @property
    def branches(self) -> int:
        return self.ids.shape[0] // self.own.shape[0]

    def of_task(self) -> dict[str, Any]:
        """What a task takes from them."""
        return {
            "guidance": self.guidance,
            "batch": self.own.shape[0],
            "branches": self.branches,
            "prompt_ids": self.ids,
            "prompt_mask": self.mask.bool(),
            "own_prompt": self.own,
            "as_dict": bool(self.config.return_dict_in_generate),
        }


def read_prompts(model: Any, kwargs: dict[str, Any]) -> Prompts:
    """Read prompts and settings, guidance by `guidance_scale` and `negative_prompt_ids` as transformers takes it.

    Without a negative prompt the unconditional branch starts from the last prompt token, as there.
    """
    ids, mask = prompt_of(model, kwargs)
    negative = kwargs.pop("negative_prompt_ids", None)
    negative_mask = kwargs.pop("negative_prompt_attention_mask", None)
    config, _ = generation_settings(model, kwargs)
    times = config.num_return_sequences
    own = ids.repeat_interleave(times, 0)
    scale = config.guidance_scale
    if scale is None or scale == 1:
        return Prompts(config, 1.0, own, own, mask.repeat_interleave(times, 0))
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
    pad = model.config.get_text_config().pad_token_id
    both, both_mask = left_pad([ids, negative], [mask, negative_mask], pad)
    return Prompts(config, float(scale), own, *(x.repeat_interleave(times, 0) for x in (both, both_mask)))


def missing_limit(model: Any, kwargs: dict[str, Any], layout: Layout) -> dict[str, int]:
    """The tokens of a whole picture as `max_new_tokens`, where a call of the plain model gives no limit; else empty."""
    if setting(model, kwargs, "max_new_tokens") is not None:
        return {}
    asked = setting(model, kwargs, "max_length")
    return {"max_new_tokens": layout.length} if asked in (None, UNASKED_LENGTH) else {}


def check_room(prompts: Prompts, layout: Layout) -> None:
    """Refuse a token limit that would cut the picture."""
    config, asked, needed = prompts.config, "max_new_tokens", layout.length
    if config.max_new_tokens is None and config.max_length not in (None, UNASKED_LENGTH):
        asked, needed = "max_length", prompts.own.shape[1] + layout.length
    limit = getattr(config, asked)
    if limit is not None and limit < needed:
        raise UnsupportedTargetError(
            f"{asked}={limit} cuts the picture, of {layout.length} tokens: pass {asked}={needed} or leave it out"
        )
