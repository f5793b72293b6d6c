"""tiny-wan: a real `WanPipeline` that lets emoji move over paper."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from transformers import UMT5EncoderModel

from ..errors import SettingError
from .small_pipeline import SmallPipeline, loaded
from .vocabulary import facts_of


class TinyWanPipeline(SmallPipeline, WanPipeline):
    """diffusers' own pipeline with this model's sizes as defaults, which also says what prompts it takes."""

    example = "tiny-wan", "rocket moves up, blue background"

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int = 64,
        width: int = 64,
        num_frames: int = 17,
        num_inference_steps: int = 40,
        guidance_scale: float = 3.0,
        *,
        max_sequence_length: int = 16,
        **options: Any,
    ) -> Any:
        """As `WanPipeline.__call__`.

        Raises
        ------
        PromptError
            If a prompt is empty, has words that the model does not know, or names nothing that it can draw.
        """
        self.check_prompts(prompt)
        return cast(Any, super()).__call__(
            prompt,
            negative_prompt,
            height,
            width,
            num_frames,
            num_inference_steps,
            guidance_scale,
            max_sequence_length=max_sequence_length,
            **options,
        )


def load(folder: Path) -> TinyWanPipeline:
    """The pipeline in float32 on the CPU."""
    parts = loaded(folder, text_encoder=UMT5EncoderModel, vae=AutoencoderKLWan, transformer=WanTransformer3DModel)
    pipeline = TinyWanPipeline(**parts, scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"))
    pipeline.facts = facts_of(folder)
    return pipeline


def prompts(
    folder: Path, count: int, seed: int, *, things: int | None = None, moving: int | None = None
) -> Iterator[str]:
    """Different captions of the model's world.

    Parameters
    ----------
    things
        How many things there are, 1 or 2; None mixes both.
    moving
        How many of them move: 0 leaves everything still, 2 leaves most to do. None mixes.

    Raises
    ------
    SettingError
        If there are no such captions, or fewer than `count`.
    """
    facts = facts_of(folder)
    rng, seen = random.Random(seed), set[str]()
    counts = [(n, m) for n in (1, 2) for m in range(n + 1) if things in (None, n) and moving in (None, m)]
    if not counts:
        raise SettingError(f"no caption of tiny-wan has things={things}, moving={moving}: it has 1 or 2 things")
    still, active = ([motion for motion, moves in facts["motions"].items() if moves == kind] for kind in (False, True))
    for _ in range(200 * count):
        if len(seen) == count:
            return
        number, movers = rng.choice(counts)
        motions = [rng.choice(active if i < movers else still) for i in range(number)]
        rng.shuffle(motions)
        names = rng.sample(facts["names"], number)
        parts = [f"{name} {motion}" for name, motion in zip(names, motions, strict=True)]
        caption = ", ".join([*parts, f"{rng.choice(facts['backgrounds'])} background"])
        if caption not in seen:
            seen.add(caption)
            yield caption
    if len(seen) < count:
        raise SettingError(f"only {len(seen)} captions found with things={things}, moving={moving}: ask for fewer")
