"""Write `tiny-reader` as it is shipped."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
from PIL import Image
from transformers import LightOnOcrForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from ..checkpoint import write_facts
from .shape import PATCH


def save(
    model: LightOnOcrForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    glyphs: np.ndarray,
    folder: Path,
    facts: dict[str, object],
) -> None:
    """Float16 weights, configuration, processor, the glyphs of its pages, and facts."""
    shipped = copy.deepcopy(model).half()
    for config in (shipped.config.text_config, shipped.config.vision_config):
        config._attn_implementation = "sdpa"  # that of training is not to be found elsewhere
        config.dtype = None  # it is stored once, for the whole model
    shipped.save_pretrained(folder)
    images = PixtralImageProcessorPil(size={"longest_edge": 512}, patch_size={"height": PATCH, "width": PATCH})
    LightOnOcrProcessor(images, tokenizer, patch_size=PATCH, spatial_merge_size=1).save_pretrained(folder)
    sheet = glyphs.transpose(0, 2, 1, 3).reshape(glyphs.shape[0] * glyphs.shape[2], -1)
    Image.fromarray((sheet * 255).round().astype(np.uint8)).save(folder / "glyphs.png", optimize=True)
    write_facts(facts, folder)
