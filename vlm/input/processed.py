"""Texts, pictures and videos to the arguments of a model, by a processor of whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers import ProcessorMixin

from mmaccel.decoding.setting import pass_device
from mmaccel.errors import PromptError
from mmaccel.files.pictures import on_white

from ..context.parts import TIMES
from .read_video import VideoFrames


def processed(processor: Any, texts: Sequence[str], videos: Sequence[Any], pictures: Sequence[Any] = ()) -> Any:
    """What a processor makes of texts with their pictures and with every frame of their videos.

    Parameters
    ----------
    videos
        :class:`~mmaccel.vlm.VideoFrames`, whose times the processor is told, or pictures and arrays of which none are
        known.
    pictures
        Those of one text: beside several there are none.

    Raises
    ------
    PromptError
        If the processor would leave videos or pictures out.
    """
    of_transformers = isinstance(processor, ProcessorMixin)
    if videos and of_transformers and getattr(processor, "video_processor", None) is None:
        raise PromptError(
            f"{type(processor).__name__} takes pictures, no videos: ask a model that is shown videos, such as"
            " Qwen/Qwen2.5-VL-3B-Instruct"
        )
    if videos and pictures and of_transformers and _named(processor, "image") & _named(processor, "video"):
        raise PromptError(
            f"{type(processor).__name__} gives pictures and videos one name, so that one of them is lost: ask about"
            " pictures or about videos alone"
        )
    images = [list(pictures)] if pictures and of_transformers else list(pictures)  # nested they belong to one prompt
    shown = {"images": images, "videos": [[_frame(each) for each in video] for video in videos]}
    given: dict[str, Any] = {kind: items for kind, items in shown.items() if items}
    if videos and hasattr(processor, "video_processor"):  # some of transformers' choose among frames as in a whole file
        given |= {"do_sample_frames": False, "video_metadata": [_metadata(video) for video in videos]}
    given |= single_bos(processor, texts[0])
    if of_transformers and len(texts) > 1:  # whatever its tokenizer says: answers follow their prompts
        given["padding_side"] = "left"
    return processor(text=list(texts), return_tensors="pt", padding=True, **given)


def for_model(inputs: Any, target: Any) -> Any:
    """Inputs on the device and, but for times, in the precision of a model: towers as Llama 4's cast nothing."""
    inputs = inputs.to(pass_device(target, inputs["input_ids"]))
    for name, value in [*inputs.items()]:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and name not in TIMES:
            inputs[name] = value.to(target.dtype)
    return inputs


def _named(processor: Any, kind: str) -> set[str]:
    """What a processor calls its pictures or videos among the arguments of a model."""
    names = getattr(getattr(processor, f"{kind}_processor", None), "model_input_names", None) or ()
    return {name for name in names if name.startswith("pixel_values")}


def _frame(given: Any) -> Any:
    """A frame as processors take it: pictures in RGB, to which they convert single ones but none of a video."""
    return on_white(given) if isinstance(given, Image.Image) else given


def single_bos(processor: Any, text: str) -> dict[str, bool]:
    """What keeps a tokenizer from beginning a text once more, where the chat template has written its `bos_token`."""
    bos = getattr(getattr(processor, "tokenizer", None), "bos_token", None)
    return {"add_special_tokens": False} if bos and text.startswith(bos) else {}


def _metadata(video: Any) -> dict[str, Any]:
    """What is known of a video; of frames without times no more than a processor sees by itself."""
    if isinstance(video, VideoFrames):
        return video.metadata
    return {"total_num_frames": len(video), "frames_indices": list(range(len(video)))}
