"""From a picture of a page to Markdown, for the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmaccel import zoo
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError

from .answering import loaded
from .arguments import READER
from .input.misread import misread
from .input.processed import for_model, single_bos
from .input.regions import Region, regions_of

PROMPT = "Convert this page to Markdown."  # of readers that are told what to do
MOST_BYTES = 16 << 20  # of a file with regions
LIKE = '[{"box": [16, 16, 208, 32], "text": "# Title"}, ...]'


def load(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Load a reader and its processor from a zoo name, a hub id or a folder; never runs its code.

    Raises
    ------
    UnsupportedTargetError
        If it is no reader, or needs its own code.
    MissingExtraError
        If its processor needs a package that is not installed.
    WeightsError
        If its weights are damaged, or some of them are missing.
    """
    own = zoo.like(model)
    if own is not None and own != READER:
        raise UnsupportedTargetError(f"{model} reads no pages: use {READER}, or `mmaccel run {zoo.modality(own)}`")
    return loaded(model, device, dtype)


def prompt_of(processor: Any, asked: str | None) -> str | None:
    """The prompt of a page, with its placeholder; None for a processor that has its own."""
    from mmaccel.zoo.tiny_reader import ReaderProcessor

    if isinstance(processor, ReaderProcessor):
        if asked is not None:
            raise SettingError(f"--prompt: {READER} knows one prompt, leave it out")
        return None
    if getattr(processor, "chat_template", None) is None:  # GOT-OCR 2 writes its prompt itself
        mark = getattr(processor, "image_token", "")
        if asked is not None and mark not in asked:
            raise SettingError(f"--prompt: no chat template puts the page into it: write {mark} there, or leave it out")
        return asked
    content = [{"type": "image"}, {"type": "text", "text": PROMPT if asked is None else asked}]
    return str(processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True))


def read(
    target: Any,
    processor: Any,
    page: Image.Image,
    prompt: str | None = None,
    max_new_tokens: int = 1024,
    regions: list[Region] | None = None,
) -> tuple[str, float]:
    """What a session or a plain model reads on a page, greedily, and the seconds; `regions` for `DocumentDraft`."""
    given = {} if regions is None else {"regions": regions, "page": page, "processor": processor, "prompt": prompt}
    asked = {} if prompt is None else {"text": prompt, **single_bos(processor, prompt)}
    inputs = processor(images=page, return_tensors="pt", **asked)
    inputs = for_model(inputs, target)
    began = time.perf_counter()
    tokens = target.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, **given)
    seconds = time.perf_counter() - began
    text = processor.tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text.strip(), seconds


def example(wrong: float) -> tuple[Image.Image, list[Region]]:
    """A page that the shipped model never saw, with regions of which a share of the words is wrong."""
    (page,) = zoo.pages(READER, 1)
    return Image.fromarray(page.picture), [Region(*region) for region in misread(page.regions, wrong)]


def read_regions(path: Path) -> list[Region]:
    """The regions of a JSON file.

    Raises
    ------
    PromptError
        If there is none, or it holds something else.
    """
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MOST_BYTES))
        return regions_of([(each["box"], each["text"]) for each in found], None)[0]
    except OSError as error:
        raise PromptError(f"cannot read {path} ({error.strerror}): give a file such as {LIKE}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = str(error) if isinstance(error, SettingError) else "it is no list of boxes and texts"
        raise PromptError(f"{path}: {reason}; it must be like {LIKE}") from error
