"""From a video and a question to an answer, for the command line and the benchmarks."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

import torch

from mmaccel import zoo
from mmaccel.adapter import find_adapter
from mmaccel.errors import MissingExtraError, PromptError, UnsupportedTargetError, WeightsError
from mmaccel.modality import get_modality
from mmaccel.zoo.weights import check_name, load_pretrained, no_foreign_code

from .arguments import READER
from .families.visual_adapter import VisualAdapter
from .input.processed import for_model, processed


def load(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Load a vision-language model and its processor from a zoo name, a hub id or a folder; never runs its code.

    Raises
    ------
    UnknownNameError
        If there is no model of this name.
    UnsupportedTargetError
        If its family has no adapter, or it needs its own code.
    MissingExtraError
        If its processor needs a package that is not installed.
    WeightsError
        If its weights are damaged, or some of them are missing.
    """
    own = zoo.like(model)
    if own is not None and zoo.modality(own) != "vlm":
        raise UnsupportedTargetError(f"{model} answers no questions: use `mmaccel run {zoo.modality(own)}`")
    target, processor = loaded(model, device, dtype)
    if not isinstance(find_adapter(target), VisualAdapter):
        raise UnsupportedTargetError(f"{model} is a {type(target).__name__}, which sees no videos that mmaccel knows")
    return target, processor


def loaded(model: str, device: str, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """A model and its processor from the zoo, a hub id or a folder; one that a recipe wrote is loaded as our own.

    Raises
    ------
    UnknownNameError, UnsupportedTargetError, MissingExtraError, WeightsError
    """
    if zoo.like(model):
        target, processor = zoo.load(model)
    else:
        target, processor = from_hub(model, dtype)
        dtype = None  # a second cast would reach the parts that their family keeps in float32
    return target.to(device, dtype).eval(), processor


def from_hub(model: str, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """A vision-language model and its processor from a hub id or a folder; never runs its code."""
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    check_name("vision-language model", model, own := (*get_modality("vlm").models(), READER))
    try:
        with no_foreign_code(model):
            AutoConfig.from_pretrained(model, trust_remote_code=False)  # says best what is wrong
            processor = AutoProcessor.from_pretrained(model, trust_remote_code=False)
            ours: dict[str, Any] = {"attn_implementation": "sdpa", "trust_remote_code": False}
            target = load_pretrained(AutoModelForImageTextToText, model, dtype, **ours)
        getattr(processor, "tokenizer", processor).padding_side = "left"  # answers of a batch follow their prompts
    except (MissingExtraError, WeightsError):
        raise
    except ImportError as error:
        advice = "" if importlib.util.find_spec("torchvision") else ": pip install torchvision"
        raise MissingExtraError(f"the processor of {model} needs more{advice} ({error})") from error
    except (OSError, ValueError) as error:
        raise UnsupportedTargetError(
            f"{model!r} is not a vision-language model: give a zoo name ({', '.join(own)}), hub id or folder"
            f" ({str(error).splitlines()[0]})"
        ) from error
    return target, processor


def ask(
    target: Any, processor: Any, frames: Any, questions: Sequence[str], max_new_tokens: int = 32
) -> tuple[list[str], float]:
    """Greedy answers of a session or a plain model to questions about one video, in one batch, with the seconds.

    Parameters
    ----------
    frames
        :class:`~mmaccel.vlm.VideoFrames`; or pictures, or uint8 `[F, H, W, 3]`, whose times are not known.

    Raises
    ------
    PromptError
        If a question is empty.
    """
    inputs = for_model(prepare(processor, frames, questions), target)
    began = time.perf_counter()
    tokens = target.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    seconds = time.perf_counter() - began
    answers = processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [answer.strip() for answer in answers], seconds


def prepare(processor: Any, frames: Any, questions: Sequence[str]) -> Any:
    """Inputs of `generate` for questions about one video."""
    if any(not question.strip() for question in questions):
        raise PromptError("the question is empty: ask something about the video, such as 'what moves up?'")
    texts = []
    for question in questions:
        content = [{"type": "video"}, {"type": "text", "text": question}]
        conversation = [{"role": "user", "content": content}]
        texts.append(processor.apply_chat_template(conversation, add_generation_prompt=True))
    return processed(processor, texts, [frames] * len(texts))
