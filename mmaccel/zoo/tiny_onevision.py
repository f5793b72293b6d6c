"""tiny-onevision: a real `LlavaOnevisionForConditionalGeneration` that answers questions about moving emoji."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from ..errors import SettingError
from .frames import OnevisionProcessor
from .vocabulary import facts_of
from .weights import load_pretrained
from .worlds import brief_events, moving_questions, moving_world

QUESTIONS_A_CLIP = 4
REPEATED = 800  # questions in a row that were all asked before: by then there are hardly any others


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
    """Different questions that the model understands; fewer than `count` where clips bring no others."""
    seen, repeated = set[str](), 0
    for row in _endless(folder, seed):
        if len(seen) == count or repeated == REPEATED:
            return
        repeated += 1
        if row.question not in seen:
            repeated = 0
            seen.add(row.question)
            yield row.question


def questions(
    folder: Path, count: int, seed: int, brief: bool = False, frames: int | None = None
) -> Iterator[VideoQuestion]:
    """Questions about clips of scenes that the model was never trained on, four a clip, kinds in turn.

    Parameters
    ----------
    brief
        Clips in which things are seen for 2 to 8 frames, and questions about these: frames cannot be skipped.
    frames
        Length of brief clips, 32 by default; the model was trained on 32 at most.

    Raises
    ------
    SettingError
        If other clips than brief ones, or these with less than 16 frames, are to have another length.
    """
    if frames is not None and (not brief or frames < brief_events.SHORTEST):
        raise SettingError(f"frames={frames}: only brief clips (brief=True) have a length, of 16 frames or more")
    return itertools.islice(_endless(folder, seed, brief, frames), count)


def _endless(folder: Path, seed: int, brief: bool = False, frames: int | None = None) -> Iterator[VideoQuestion]:
    sprites = sprites_of(folder)
    for number in itertools.count():
        of_clip, of_choice = [seed, number, 1], np.random.default_rng([seed, number, 2])
        if brief:
            clip = brief_events.draw_clip(of_clip, frames=frames or brief_events.FRAMES, sprites=sprites)
            chosen = brief_events.choose(clip, of_choice, QUESTIONS_A_CLIP)
        else:
            clip = moving_world.draw_clip(of_clip, True, footage=moving_world.ONEVISION, sprites=sprites)
            chosen = moving_questions.choose(clip, of_choice, QUESTIONS_A_CLIP)
        for asked in chosen:
            yield VideoQuestion(clip.frames, asked.text, asked.answer, asked.kind)


def sprites_of(folder: Path) -> Callable[[str, int], np.ndarray]:
    """The things' pictures as they are shipped, so that no font is needed."""
    names = facts_of(folder)["names"]
    with Image.open(folder / "sprites.png") as sheet:
        pixels = np.asarray(sheet.convert("RGBA"), np.float32) / 255
    pictures = dict(zip(names, np.split(pixels, len(names), 1), strict=True))
    return lambda name, size: pictures[name]
