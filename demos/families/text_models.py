"""Small models of transformers' causal language models, and prompts for them.

`text_models.json` has a line for each class: what its configuration needs beside `text_sizes.json`, which has the
sizes by what configurations call them; a class takes those that it has.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
import transformers

from mmaccel.vlm.examples import prompts
from mmaccel.vlm.visual_examples import sharp

from .visual_models import filled
from .written import read_rows

LAYERS, NEW_TOKENS = 4, 10
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
OPTIONAL = ("sliding_window", "q_lora_rank", "attention_chunk_size")  # None stays None
DRAFTING, CODES, SEES = "drafts for a larger one, whose cache it reads", "writes codes of sound", "is shown pictures"
NEWER = "is newer than the transformers that the table was made with"
# Classes of transformers' list that are not built.
UNTRIED = {
    "Apertus1p5TextForCausalLM": NEWER,
    "DoryForCausalLM": NEWER,
    "Gemma3ForConditionalGeneration": SEES,
    "Gemma3nForConditionalGeneration": SEES,
    "Gemma4ForConditionalGeneration": SEES,
    "Gemma4AssistantForCausalLM": DRAFTING,
    "Gemma4UnifiedForConditionalGeneration": SEES,
    "Gemma4UnifiedAssistantForCausalLM": DRAFTING,
    "GotOcr2ForConditionalGeneration": SEES,
    "Inkling2LoopForCausalLM": NEWER,
    "LaraMiniForCausalLM": NEWER,
    "MossTranscribeDiarizeForConditionalGeneration": "hears",
    "MusicgenForCausalLM": CODES,
    "MusicgenMelodyForCausalLM": CODES,
}
rows = functools.partial(read_rows, "text_models.json")


def build(name: str, seed: int = 0) -> Any:
    """A model of a class."""
    return sharp(lambda: filled(getattr(transformers, name)(config_of(name))), seed)


def config_of(name: str) -> Any:
    """A small configuration of a class, with layers of each kind that its default one has."""
    kind, row = getattr(transformers, name).config_class, rows()[name]
    fields, default = {field.name for field in dataclasses.fields(kind)}, vars(kind())
    general = {"use_cache": True, "is_decoder": True, "tie_word_embeddings": False, **TOKENS}
    general |= {key: int(size) for size, keys in read_rows("text_sizes.json").items() for key in keys}
    unset = {key for key in OPTIONAL if default.get(key) is None}
    sizes = {key: value for key, value in general.items() if key in fields - unset}
    if "kv_lora_rank" in fields:  # every head has keys of its own
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    kinds = list(dict.fromkeys(default.get("layer_types") or ()))
    if len(kinds) > 1 and "layer_types" in fields:
        sizes["layer_types"] = (kinds * LAYERS)[:LAYERS]
    return kind(**{key: value for key, value in {**sizes, **row}.items() if value != "default"})


def call(batch: int = 1, **more: Any) -> dict[str, Any]:
    """The arguments of a greedy call whose prompt begins to repeat itself; every second one is padded on the left."""
    ids, mask = prompts(batch, 24)
    ids, mask = (torch.cat([value, value[:, 8:20]], 1) for value in (ids, mask))
    return {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW_TOKENS, "do_sample": False, **more}
