"""tiny-amused: a real `AmusedPipeline` that draws emoji on paper, in the codes of tiny-janus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel, VQModel
from transformers import AutoTokenizer, CLIPTextModelWithProjection

from . import tiny_janus
from .saving import SavedAsDiffusers
from .vocabulary import Vocabulary
from .weights import load_pretrained


class TinyAmusedPipeline(SavedAsDiffusers, AmusedPipeline):
    """diffusers' own pipeline with this model's guidance as default, which also says what prompts it takes.

    Attributes
    ----------
    facts
        What `training.json` tells: `names`, `backgrounds` and how it was trained.
    """

    facts: dict[str, Any]
    tokenizer: Any

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
        if prompt is not None:
            for text in prompt if isinstance(prompt, list) else [prompt]:
                self.vocabulary.check(text)
        return cast(Any, super()).__call__(prompt, height, width, num_inference_steps, guidance_scale, **options)

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of its prompts."""
        return Vocabulary("tiny-amused", self.facts["names"], self.tokenizer, "small red heart on blue")


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
    pipeline.facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return pipeline


def prompts(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Different captions of the model's world, which are those of tiny-janus."""
    yield from tiny_janus.prompts(folder, count, seed)
