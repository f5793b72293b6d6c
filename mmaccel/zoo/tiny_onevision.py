"""tiny-onevision: a real `LlavaOnevisionForConditionalGeneration` that answers questions about moving emoji."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from .frames import OnevisionProcessor
from .weights import load_pretrained

QUESTIONS_A_CLIP = 4


class VideoQuestion(NamedTuple):
    """A question about a clip, and its only right answer.

    Attributes
    ----------
    frames : uint8 `[T, H, W, 3]`
    question, answer
        As the model is asked, and as it answers when it is right.
    kind
        What is asked for, such as ``"motion"`` or ``"count"``.
    """

    frames: np.ndarray
    question: str
    answer: str
    kind: str


def load(folder: Path) -> tuple[LlavaOnevisionForConditionalGeneration, OnevisionProcessor]:
    """Model in float32 on the CPU, and its processor."""
    model = load_pretrained(LlavaOnevisionForConditionalGeneration, folder, dtype=torch.float32)
    return model, load_processor(folder)


def load_processor(folder: Path) -> OnevisionProcessor:
    """The processor alone."""
    config: Any = LlavaOnevisionConfig.from_pretrained(folder)
    return OnevisionProcessor(AutoTokenizer.from_pretrained(folder, trust_remote_code=False), config)


def prompts(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Different questions that the model understands."""
    seen = set[str]()
    for row in _endless(folder, seed):
        if len(seen) == count:
            return
        if row.question not in seen:
            seen.add(row.question)
            yield row.question


def questions(folder: Path, count: int, seed: int) -> Iterator[VideoQuestion]:
    """Questions about clips of scenes that the model was never trained on, four a clip, kinds in turn."""
    endless = _endless(folder, seed)
    for _ in range(count):
        yield next(endless)


def _endless(folder: Path, seed: int) -> Iterator[VideoQuestion]:
    from mmaccel.demos.training import moving_questions, moving_world

    sprites, clips = _sprites(folder), 0
    while True:
        clip = moving_world.draw_clip([seed, clips, 1], held_out=True, footage=moving_world.ONEVISION, sprites=sprites)
        for asked in moving_questions.choose(clip, np.random.default_rng([seed, clips, 2]), QUESTIONS_A_CLIP):
            yield VideoQuestion(clip.frames, asked.text, asked.answer, asked.kind)
        clips += 1


def _sprites(folder: Path) -> Callable[[str, int], np.ndarray]:
    """The things' pictures as they are shipped, so that no font is needed."""
    names = json.loads((folder / "training.json").read_text(encoding="utf-8"))["names"]
    with Image.open(folder / "sprites.png") as sheet:
        pixels = np.asarray(sheet.convert("RGBA"), np.float32) / 255
    pictures = dict(zip(names, np.split(pixels, len(names), 1), strict=True))
    return lambda name, size: pictures[name]
