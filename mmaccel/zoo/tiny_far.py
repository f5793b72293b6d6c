"""tiny-far: a real `AnyFlowFARPipeline` that lets emoji move, block by block, and a smaller model to draft for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from diffusers import AnyFlowFARPipeline, AnyFlowFARTransformer3DModel, FlowMapEulerDiscreteScheduler

from ..errors import SettingError
from . import tiny_wan
from .small_pipeline import SmallPipeline
from .tiny_wan import prompts
from .vocabulary import facts_of
from .weights import load_pretrained

__all__ = ["TinyFarPipeline", "load", "prompts"]


class TinyFarPipeline(SmallPipeline, AnyFlowFARPipeline):
    """diffusers' own pipeline with this model's sizes as defaults, which also says when a prompt is outside its world.

    Attributes
    ----------
    draft : AnyFlowFARTransformer3DModel
        A smaller transformer of the same latents and texts: ``fast(prompt, draft=pipe.draft, score=score)``.
    """

    example = "tiny-far", "rocket moves up, blue background"
    draft: Any
    transformer: Any
    vae_scale_factor_temporal: int

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        height: int = 64,
        width: int = 64,
        num_frames: int = 71,
        num_inference_steps: int = 20,
        guidance_scale: float = 3.0,
        *,
        max_sequence_length: int = 16,
        **options: Any,
    ) -> Any:
        """As `AnyFlowFARPipeline.__call__`, in blocks of four latent frames unless told otherwise.

        Raises
        ------
        SettingError
            If there are too few frames for two blocks.
        PromptError
            If a prompt is empty, has words that the model does not know, or names nothing that it can draw.
        """
        self.check_prompts(prompt)
        if options.get("chunk_partition") is None:
            options["chunk_partition"] = self.blocks(num_frames)
        return cast(Any, super()).__call__(
            prompt,
            height=height,
            width=width,
            num_frames=num_frames,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            max_sequence_length=max_sequence_length,
            **options,
        )

    def blocks(self, num_frames: int) -> list[int]:
        """Latent frames of each block: two blocks at least, since the pipeline cannot draw a single one.

        Numbers of frames that the autoencoder cannot have are rounded as the pipeline rounds them.
        """
        latents = 1 + num_frames // self.vae_scale_factor_temporal
        block = min(self.transformer.config.chunk_partition[0], latents // 2)
        if block == 0:
            raise SettingError(f"num_frames={num_frames}: tiny-far draws two blocks at least, num_frames=3")
        rest = [latents % block] if latents % block else []
        return [block] * (latents // block) + rest


def load(folder: Path) -> TinyFarPipeline:
    """The pipeline in float32 on the CPU, with the autoencoder and the text encoder of the shipped `tiny-wan`."""
    shared: Any = tiny_wan.load(Path(__file__).parent / "tiny-wan")
    transformer, draft = (
        load_pretrained(AnyFlowFARTransformer3DModel, folder / part, dtype=torch.float32)
        for part in ("transformer", "draft")
    )
    pipeline = TinyFarPipeline(
        tokenizer=shared.tokenizer,
        text_encoder=shared.text_encoder,
        vae=shared.vae,
        scheduler=FlowMapEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        transformer=transformer,
    )
    pipeline.draft = draft
    pipeline.facts = facts_of(folder)
    return pipeline
