"""tiny-canvas: a real `LlavaOnevisionForConditionalGeneration` that lists what a picture shows, block by block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaOnevisionForConditionalGeneration

from .block_causal import BlockCausalModel
from .block_pipeline import BlockDiffusionPipeline, ChatScheduler
from .frames import OnevisionProcessor
from .tiny_onevision import VideoQuestion, load_processor, sprites_of
from .weights import load_pretrained
from .worlds import listed_world


def load(folder: Path) -> tuple[Any, OnevisionProcessor]:
    """A `BlockDiffusionPipeline` in float32 on the CPU, and the processor of its pictures."""
    model = load_pretrained(LlavaOnevisionForConditionalGeneration, folder, dtype=torch.float32)
    processor = load_processor(folder)
    wrapped = BlockCausalModel(model)
    scheduler = ChatScheduler(block_length=wrapped.block_length, editing_threshold=None)
    pipe: Any = BlockDiffusionPipeline(wrapped, scheduler, processor.tokenizer)
    pipe.set_progress_bar_config(disable=True)
    return pipe, processor


def prompts(folder: Path, count: int, seed: int) -> Iterator[str]:
    """The one question that the model understands."""
    yield from itertools.repeat(listed_world.QUESTION, min(count, 1))


def questions(folder: Path, count: int, seed: int) -> Iterator[VideoQuestion]:
    """Pictures that the model was never trained on, as clips of one frame, to be listed."""
    sprites = sprites_of(folder.parent / "tiny-onevision")
    for number in range(count):
        listing = listed_world.draw_listing([seed, number, 3], True, sprites)
        yield VideoQuestion(listing.picture[None], listed_world.QUESTION, listing.text, "list")
