"""Janus and Janus-Pro: a fixed square grid of codebook ids, guidance always by a doubled batch."""

from __future__ import annotations

import math
from typing import Any

import torch

from mmaccel.adapter import register_adapter
from mmaccel.decoding.setting import setting
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.private import generation_settings

from ..decoding.layout import Layout
from ..decoding.sampling import Sampling
from ..decoding.task import ImageTask, as_output
from .adapter import ImageAdapter, prompt_of

DEFAULT_GUIDANCE = 5.0  # what the model's own generate falls back to


class JanusTask(ImageTask):
    """One picture per row, 576 tokens in Janus-Pro."""

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model.prepare_embeddings_for_image_generation(tokens.to(self.passes_on))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.model.generation_head(hidden)

    def codebook(self) -> torch.Tensor:
        # the decoder normalises codes before it uses them, so distances are taken the same way
        every = torch.arange(self.codes, device=self.passes_on)
        return torch.nn.functional.normalize(self.model.model.vqmodel.quantize.embedding(every), dim=-1)

    def result(self, tokens: torch.Tensor) -> Any:
        return as_output(tokens) if self.as_dict else tokens


@register_adapter
class JanusAdapter(ImageAdapter):
    """`JanusForConditionalGeneration`, with `generate(generation_mode="image")`."""

    family = "janus"
    classes = ("JanusForConditionalGeneration",)

    def layout(self) -> Layout:
        tokens = self.model.config.vision_config.num_image_tokens
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise UnsupportedTargetError(
                f"num_image_tokens={tokens} is no square: pictures of Janus are as high as wide, correct the"
                " vision_config"
            )
        return Layout.grids([(side, side)])

    def keeps_grid(self, kwargs: dict[str, Any]) -> bool:
        scale = self._guidance(kwargs)
        return scale is None or scale > 1

    def plain_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self.keeps_grid(kwargs):
            raise UnsupportedTargetError(
                f"guidance_scale={self._guidance(kwargs)}: the plain {type(self.model).__name__} cannot do without"
                " guidance, so that there is nothing to compare with: give more than 1, or draw without comparing"
            )
        return {}

    def _guidance(self, kwargs: dict[str, Any]) -> float | None:
        return setting(self.model, kwargs, "guidance_scale")

    def makes_images(self, kwargs: dict[str, Any]) -> bool:
        return kwargs.get("generation_mode", "text") == "image"

    def begin(self, kwargs: dict[str, Any]) -> ImageTask:
        kwargs.pop("generation_mode")
        ids, mask = prompt_of(self.model, kwargs)
        config, _ = generation_settings(self.model, kwargs)
        guidance = DEFAULT_GUIDANCE if config.guidance_scale is None else float(config.guidance_scale)
        if not math.isfinite(guidance):
            raise SettingError(f"guidance_scale={guidance}: give a finite number, such as 5.0")
        ids = ids.repeat_interleave(config.num_return_sequences, 0)
        mask = mask.repeat_interleave(config.num_return_sequences, 0)
        batch, branches = ids.shape[0], 1
        if guidance != 1:
            branches = 2
            kept = (ids == config.bos_token_id) | (ids == config.generation_kwargs["boi_token_id"])
            ids = torch.cat([ids, ids.masked_fill(~kept, config.pad_token_id)])
            mask = mask.repeat(2, 1)
        return JanusTask(
            model=self.model,
            layout=self.layout(),
            sampling=Sampling.from_config(config, range(self.model.config.vq_config.num_embeddings)),
            guidance=guidance,
            batch=batch,
            branches=branches,
            prompt_ids=ids,
            prompt_mask=mask.bool(),
            codes=self.model.config.vq_config.num_embeddings,
            specials=0,
            as_dict=bool(config.return_dict_in_generate),
        )
