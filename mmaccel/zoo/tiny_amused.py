"""tiny-amused: a real `AmusedPipeline` that draws emoji on paper, in the codes of tiny-janus."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel, VQModel
from transformers import AutoTokenizer, CLIPTextModelWithProjection

from .small_pipeline import SmallPipeline
from .tiny_janus import prompts
from .vocabulary import facts_of
from .weights import load_pretrained

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
    pipeline: Any = TinyAmusedPipeline(
        vqvae=load_pretrained(VQModel, folder / "vqvae", dtype=torch.float32),
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False),
        text_encoder=load_pretrained(CLIPTextModelWithProjection, folder / "text_encoder", dtype=torch.float32),
        transformer=load_pretrained(UVit2DModel, folder / "transformer", dtype=torch.float32),
        scheduler=AmusedScheduler.from_pretrained(folder / "scheduler"),
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.facts = facts_of(folder)
    return pipeline
