"""tiny-janus: a real `JanusForConditionalGeneration` that draws emoji on paper."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, JanusConfig, JanusForConditionalGeneration, JanusProcessor
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

from ..errors import SettingError
from .vocabulary import Vocabulary, facts_of
from .weights import load_pretrained


class TinyJanusProcessor(JanusProcessor):
    """transformers' own processor, which also says when a prompt is outside the model's small world."""

    def __init__(self, image_processor: Any, tokenizer: Any, names: list[str], **kwargs: Any) -> None:
        super().__init__(image_processor, tokenizer, **kwargs)
        self.names = names

    def __call__(self, text: Any = None, images: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("generation_mode") == "image":
            for prompt in [text] if isinstance(text, str) else (text or [""]):
                self.check_prompt(prompt)
        return super().__call__(text=text, images=images, **kwargs)

    def postprocess(self, images: Any, **kwargs: Any) -> Any:
        """Decoded pictures `[H, W, 3]` in [-1, 1] to what transformers' own processor returns."""
        # The PIL image processor of transformers 5.23 takes its input as channels first, whatever it is told.
        return super().postprocess([torch.as_tensor(image).permute(2, 0, 1) for image in images], **kwargs)

    def check_prompt(self, prompt: str) -> None:
        """Raise a `PromptError` that says what comes near, unless the model can draw the prompt."""
        Vocabulary("tiny-janus", self.names, self.tokenizer, "small red heart on blue").check(prompt)


def load(folder: Path) -> tuple[JanusForConditionalGeneration, TinyJanusProcessor]:
    """Model in float32 on the CPU, and its processor."""
    model = load_pretrained(JanusForConditionalGeneration, folder, dtype=torch.float32)
    return model, load_processor(folder)


def load_processor(folder: Path) -> TinyJanusProcessor:
    """The processor alone."""
    config: Any = JanusConfig.from_pretrained(folder)
    side = config.vision_config.image_size
    image_processor = JanusImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    names = facts_of(folder)["names"]
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokens = config.vision_config.num_image_tokens
    return TinyJanusProcessor(image_processor, tokenizer, names, num_image_tokens=tokens)


def prompts(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Different captions of the model's world.

    Raises
    ------
    SettingError
        If there are fewer than `count`.
    """
    facts = facts_of(folder)
    there = len(facts["names"]) * len(facts["backgrounds"]) * (len(set(facts["sizes"])) - 1 + len(facts["places"]))
    if count > there:
        raise SettingError(f"count={count}: there are {there} captions, ask for fewer")
    rng, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        size = rng.choice(facts["sizes"])
        place = f", {rng.choice(facts['places'])}" if size == "small" else ""
        caption = f"{size} {rng.choice(facts['names'])} on {rng.choice(facts['backgrounds'])}{place}"
        if caption not in seen:
            seen.add(caption)
            yield caption
