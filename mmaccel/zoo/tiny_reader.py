"""tiny-reader: a real `LightOnOcrForConditionalGeneration` that reads printed pages and writes them as Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, LightOnOcrForConditionalGeneration
from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from .weights import load_pretrained
from .worlds import page_world

PROMPT = "<|im_start|><image><|im_end|><|im_start|>"

Box = tuple[int, int, int, int]


class PrintedPage(NamedTuple):
    """A page, and what it says.

    Attributes
    ----------
    picture : uint8 `[H, W, 3]`
    text
        All of it as Markdown.
    regions
        Its parts in reading order: ``(left, top, right, bottom)`` in pixels, and the Markdown of each.
    """

    picture: np.ndarray
    text: str
    regions: list[tuple[Box, str]]


class ReaderProcessor(LightOnOcrProcessor):
    """The processor of transformers, with the one prompt that the model knows as default."""

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> Any:
        """Arguments for `generate`: of one picture, or of a list of them with as many prompts."""
        if images is not None and text is None:
            text = [PROMPT] * len(images) if isinstance(images, list | tuple) else PROMPT
        padded = {"padding": True} if isinstance(text, list) else {}
        return super().__call__(images=images, text=text, **{**padded, **kwargs})


def load(folder: Path) -> tuple[LightOnOcrForConditionalGeneration, ReaderProcessor]:
    """Model in float32 on the CPU, and its processor."""
    model = load_pretrained(LightOnOcrForConditionalGeneration, folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    vision = model.config.vision_config
    images = PixtralImageProcessorPil(
        size={"longest_edge": vision.image_size}, patch_size={"height": vision.patch_size, "width": vision.patch_size}
    )
    merged = model.config.spatial_merge_size
    return model, ReaderProcessor(images, tokenizer, patch_size=vision.patch_size, spatial_merge_size=merged)


def prompts(folder: Path, count: int, seed: int) -> Iterator[str]:
    """The one prompt that the model understands."""
    yield from itertools.repeat(PROMPT, min(count, 1))


def pages(folder: Path, count: int, seed: int) -> Iterator[PrintedPage]:
    """Pages that the model was never trained on, nor on the names in them."""
    with Image.open(folder / "glyphs.png") as sheet:
        pixels = np.asarray(sheet.convert("L"), np.float32) / 255
    height, width = page_world.CELL_HEIGHT, page_world.CELL_WIDTH
    glyphs = pixels.reshape(2, height, -1, width).transpose(0, 2, 1, 3)
    for number in range(count):
        page = page_world.draw_page([seed, number, 5], glyphs, held_out=True)
        yield PrintedPage(page.picture, page.text, [(region.box, region.text) for region in page.regions])
