"""Write `tiny-canvas` as it is shipped."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast

from mmaccel.zoo.frames import OnevisionProcessor

from ..onevision.shape import STREAM, rescale


def processor_of(
    model: LlavaOnevisionForConditionalGeneration, tokenizer: PreTrainedTokenizerFast
) -> OnevisionProcessor:
    """What prepares its pictures and questions."""
    return OnevisionProcessor(tokenizer, model.config)


def save(
    model: LlavaOnevisionForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    facts: dict[str, object],
) -> None:
    """Float16 weights, configuration, tokenizer and facts."""
    shipped = copy.deepcopy(model)
    rescale(shipped, 1 / STREAM)
    shipped.half()
    for config in (shipped.config.text_config, shipped.config.vision_config):
        config._attn_implementation = "sdpa"  # that of training is not to be found elsewhere
        config.dtype = None  # it is stored once, for the whole model
    shipped.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
