"""From the name of a model to a pipeline, and from a picture to its list, for the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmaccel import zoo
from mmaccel.errors import UnsupportedTargetError
from mmaccel.zoo.weights import no_foreign_code


def load(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """A pipeline and the processor of its pictures, from the zoo or the folder of a `tiny-canvas` trained anew.

    Raises
    ------
    UnsupportedTargetError
        For other models: their code comes with their weights, and mmaccel runs none of it.
    WeightsError
        If the weights in a folder are damaged or foreign.
    """
    if zoo.is_known(model) and zoo.modality(model) == "canvas":
        found = zoo.load(model)
        if not isinstance(found, tuple):  # a pipeline that draws pictures, and takes a prompt alone
            return found.to(device, dtype), None
    elif (Path(model) / "training.json").is_file():  # of our own making
        from mmaccel.zoo import tiny_canvas

        with no_foreign_code(model):
            found = tiny_canvas.load(Path(model))
    else:
        raise UnsupportedTargetError(
            f"{model!r}: models that fill canvases bring Python code of their own, which mmaccel does not run; load it"
            " yourself with trust_remote_code=True, and call mmaccel.accelerate(LLaDA2Pipeline(model, scheduler,"
            " tokenizer), ...)"
        )
    pipe, processor = found
    pipe.model.to(device, dtype)
    return pipe, processor


def inputs_of(processor: Any, picture: Image.Image, question: str) -> dict[str, Any]:
    """Arguments of the pipeline for a question about a picture, which is shown as a clip of one frame."""
    return dict(processor(videos=[[picture]], text=question))


def example() -> Image.Image:
    """A shipped picture that the model was never trained on."""
    return Image.fromarray(zoo.questions("tiny-canvas", 1)[0].frames[0])
