"""Write `tiny-onevision` as it is shipped."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
from PIL import Image
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast

from mmaccel.zoo.worlds import moving_world as world

from ..checkpoint import write_facts
from .shape import STREAM, rescale


def save(
    model: LlavaOnevisionForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    facts: dict[str, object],
) -> None:
    """Float16 weights, configuration, tokenizer, the things' pictures, and facts."""
    save_weights(model, tokenizer, folder, facts)
    sprites = np.concatenate([world.sprite(name, world.SPRITE_SIZE) for name in world.NAMES], 1)
    Image.fromarray((sprites * 255).round().astype(np.uint8), "RGBA").save(folder / "sprites.png", optimize=True)


def save_weights(
    model: LlavaOnevisionForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    facts: dict[str, object],
) -> None:
    """All of it but the pictures."""
    shipped = copy.deepcopy(model)
    rescale(shipped, 1 / STREAM)
    shipped.half()
    for config in (shipped.config.text_config, shipped.config.vision_config):
        config._attn_implementation = "sdpa"  # that of training is not to be found elsewhere
        config.dtype = None  # it is stored once, for the whole model
    shipped.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_facts(facts, folder)
