"""tiny-unet: a real `StableDiffusionPipeline` that draws emoji on paper with a UNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextModel

from .small_pipeline import SmallPipeline, loaded
from .tiny_janus import prompts
from .vocabulary import facts_of

__all__ = ["TinyUNetPipeline", "load", "prompts"]


class TinyUNetPipeline(SmallPipeline, StableDiffusionPipeline):
    """diffusers' own pipeline with this model's guidance as default, which also says what prompts it takes."""

    example = "tiny-unet", "small red heart on blue"

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        *,
        guidance_scale: float = 3.0,
        **options: Any,
    ) -> Any:
        """As `StableDiffusionPipeline.__call__`.

        Raises
        ------
        PromptError
            If a prompt is empty, has words that the model does not know, or names nothing that it can draw.
        """
        self.check_prompts(prompt)
        return cast(Any, super()).__call__(
            prompt, height, width, num_inference_steps, guidance_scale=guidance_scale, **options
        )


def load(folder: Path) -> Any:
    """The pipeline in float32 on the CPU."""
    pipeline: Any = TinyUNetPipeline(
        **loaded(folder, vae=AutoencoderKL, text_encoder=CLIPTextModel, unet=UNet2DConditionModel),
        scheduler=DDIMScheduler.from_pretrained(folder / "scheduler"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.facts = facts_of(folder)
    return pipeline
