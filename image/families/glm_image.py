"""GLM-Image: a small preview grid, then the large one, on 3-axis positions; also inside its pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from mmaccel.adapter import register_adapter
from mmaccel.cache import RollbackCache
from mmaccel.cache.argument import cached
from mmaccel.errors import UnsupportedTargetError

from ..decoding.layout import Layout
from ..decoding.sampling import Sampling
from ..decoding.task import ImageTask
from .adapter import ImageAdapter, prompt_tokens
from .vocabulary import VocabularyTask, check_room, missing_limit, read_prompts

# What the model keeps between the prefill and the decoding steps of its own generate.
STATE = ("rope_deltas", "_cached_decode_position_ids", "_prefill_len")
SOURCES = ("pixel_values", "mm_encoder_outputs")  # pictures that are to be changed, themselves or encoded before


@dataclass(kw_only=True)
class GlmImageTask(VocabularyTask):
    """Preview codes, then large codes, then one end token.

    Attributes
    ----------
    inputs
        What else the model's prefill takes: grids, images.
    table
        3-axis positions of every token to come, `[rows, 3, N]`, as the model computes them at prefill.
    """

    inputs: dict[str, Any]
    table: torch.Tensor = field(init=False)

    def prefill(self, cache: RollbackCache) -> torch.Tensor:
        inner = self.model.model
        before = {name: getattr(inner, name) for name in STATE}
        asked = {"input_ids": self.prompt_ids, "attention_mask": self.prompt_mask.long(), **self.inputs}
        read = {name: x.to(self.passes_on) if isinstance(x, torch.Tensor) else x for name, x in asked.items()}
        try:
            output = inner(**read, **cached(cache), use_cache=True)
            self.table = inner._cached_decode_position_ids
        finally:
            for name, value in before.items():
                setattr(inner, name, value)
        return output.last_hidden_state[:, -1]

    def run(
        self,
        embeddings: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RollbackCache,
    ) -> torch.Tensor:
        # A window may hang over the end of the picture; the table does not.
        index = positions.to(self.table.device).clamp_max(self.table.shape[2] - 1)[:, None].expand(-1, 3, -1)
        return self._states(embeddings, mask, self.table.gather(2, index).transpose(0, 1), cache)


@register_adapter
class GlmImageAdapter(ImageAdapter):
    """`GlmImageForConditionalGeneration`, alone or as the `vision_language_encoder` of `GlmImagePipeline`.

    The picture never ends early: inside the grids only image codes are sampled. Its own generate, which plain settings
    call, may draw the end anywhere.
    """

    family = "glm_image"
    classes = ("GlmImageForConditionalGeneration", "GlmImagePipeline")
    ends_early = True
    beside = frozenset({"video"})  # the diffusion that draws by its codes

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.call_is_run = self.model is not target  # a pipeline's picture is more than its tokens

    @property
    def model(self) -> Any:
        return getattr(self.target, "vision_language_encoder", self.target)

    def makes_images(self, kwargs: dict[str, Any]) -> bool:
        return kwargs.get("image_grid_thw") is not None

    def keeps_grid(self, kwargs: dict[str, Any]) -> bool:
        return not self.plain_arguments(kwargs)

    def plain_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        ids = prompt_tokens(dict(kwargs))
        return missing_limit(self.model, kwargs, self._layout(ids, kwargs))

    def begin(self, kwargs: dict[str, Any]) -> ImageTask:
        inputs = {name: kwargs.pop(name, None) for name in ("image_grid_thw", "images_per_sample", *SOURCES)}
        prompts = read_prompts(self.model, kwargs)
        if prompts.branches == 2 and any(inputs[name] is not None for name in SOURCES):
            raise UnsupportedTargetError("guidance with source images is not supported: leave out guidance_scale")
        times = prompts.config.num_return_sequences
        layout = self._layout(prompts.own[::times], inputs)
        check_room(prompts, layout)
        codes = self.model.config.vq_config.num_embeddings
        return GlmImageTask(
            model=self.model,
            layout=layout,
            sampling=Sampling.from_config(prompts.config, range(codes)),
            codes=codes,
            specials=1,
            ids=torch.tensor([*range(codes), self.model.config.image_end_token_id], device=prompts.ids.device),
            inputs=self._expanded(inputs, prompts.own.shape[0] // times, times, prompts.branches),
            **prompts.of_task(),
        )

    def _layout(self, ids: torch.Tensor, inputs: dict[str, Any]) -> Layout:
        """The grids still to be written, last one first, as the model itself orders them."""
        counts = self._grids_per_sample(ids.shape[0], inputs)
        ends = (ids == self.model.config.image_end_token_id).sum(-1).tolist()
        samples = inputs["image_grid_thw"].split(counts)
        shapes = {
            tuple((int(h), int(w)) for _, h, w in reversed(grids[done:].tolist()))
            for grids, done in zip(samples, ends, strict=True)
        }
        if len(shapes) != 1 or not next(iter(shapes)):
            raise UnsupportedTargetError(
                f"the rows of this batch ask for different grids, {sorted(shapes)}: generate one size at a time"
            )
        return Layout.grids(list(shapes.pop()), tail=(self.model.config.vq_config.num_embeddings,))

    def _grids_per_sample(self, batch: int, inputs: dict[str, Any]) -> list[int]:
        if inputs.get("images_per_sample") is not None:
            return [int(n) for n in inputs["images_per_sample"]]
        if batch > 1:
            raise UnsupportedTargetError("a batch needs images_per_sample: pass all that the processor returns")
        return [len(inputs["image_grid_thw"])]

    def _expanded(self, inputs: dict[str, Any], batch: int, times: int, branches: int) -> dict[str, Any]:
        """Repeat grids (and images) for several pictures per prompt and for guidance."""
        counts = self._grids_per_sample(batch, inputs)
        samples = [grid for grid in inputs["image_grid_thw"].split(counts) for _ in range(times)] * branches
        expanded: dict[str, Any] = {
            "image_grid_thw": torch.cat(samples),
            "images_per_sample": torch.tensor([len(grid) for grid in samples], device=samples[0].device),
        }
        sources = {name: inputs[name] for name in SOURCES if inputs.get(name) is not None}
        if sources and times > 1:
            raise UnsupportedTargetError(
                "num_return_sequences with source images is not supported: call generate once per picture"
            )
        return {**expanded, **sources}
