"""From the name of a model to a pipeline, and from a picture to its list, for the command line."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image

from mmaccel import zoo
from mmaccel.errors import UnsupportedTargetError


def load(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """A pipeline and the processor of its pictures, from the zoo or the folder of one of its models trained anew.

    Raises
    ------
    UnsupportedTargetError
        For other models: their code comes with their weights, and mmaccel runs none of it.
    WeightsError
        If the weights in a folder are damaged or foreign.
    """
    own = zoo.like(model)
    if own is None or zoo.modality(own) != "canvas":
        raise UnsupportedTargetError(
            f"{model!r}: models that fill canvases bring Python code of their own, which mmaccel does not run; load it"
            " yourself with trust_remote_code=True, and call mmaccel.accelerate(LLaDA2Pipeline(model, scheduler,"
            " tokenizer), ...)"
        )
    found = zoo.load(model)
    if not isinstance(found, tuple):  # a pipeline that draws pictures, and takes a prompt alone
        return found.to(device, dtype), None
    pipe, processor = found
    pipe.model.to(device, dtype)
    return pipe, processor


def inputs_of(processor: Any, picture: Image.Image, question: str) -> dict[str, Any]:
    """Arguments of the pipeline for a question about a picture, which is shown as a clip of one frame."""
    return dict(processor(videos=[[picture]], text=question))


def example() -> Image.Image:
    """A shipped picture that the model was never trained on."""
    return Image.fromarray(zoo.questions("tiny-canvas", 1)[0].frames[0])
