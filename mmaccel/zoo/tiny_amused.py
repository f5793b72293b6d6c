"""tiny-amused: a real `AmusedPipeline` that draws emoji on paper, in the codes of tiny-janus."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel, VQModel
from transformers import CLIPTextModelWithProjection

from .small_pipeline import SmallPipeline, loaded
from .tiny_janus import prompts
from .vocabulary import facts_of

__all__ = ["TinyAmusedPipeline", "load", "prompts"]


class TinyAmusedPipeline(SmallPipeline, AmusedPipeline):
    """diffusers' own pipeline with this model's guidance as default, which also says what prompts it takes."""

    example = "tiny-amused", "small red heart on blue"

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 12,
        guidance_scale: float = 3.0,
        **options: Any,
    ) -> Any:
        """As `AmusedPipeline.__call__`.

        Raises
        ------
        PromptError
            If a prompt is empty, has words that the model does not know, or names nothing that it can draw.
        """
        self.check_prompts(prompt)
        return cast(Any, super()).__call__(prompt, height, width, num_inference_steps, guidance_scale, **options)


def load(folder: Path) -> Any:
    """The pipeline in float32 on the CPU."""
    parts = loaded(folder, vqvae=VQModel, text_encoder=CLIPTextModelWithProjection, transformer=UVit2DModel)
    pipeline: Any = TinyAmusedPipeline(**parts, scheduler=AmusedScheduler.from_pretrained(folder / "scheduler"))
    pipeline.set_progress_bar_config(disable=True)
    pipeline.facts = facts_of(folder)
    return pipeline
