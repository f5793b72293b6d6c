"""Small models of diffusers' classes of transformers and UNets, with the arguments of a call.

The sizes and shapes in `models.json` are those of diffusers' own tests (Apache-2.0), made deeper where a model had
fewer than three blocks, or written by hand where diffusers has none. A new class takes one line there.
"""

from __future__ import annotations

import functools
from typing import Any

import diffusers
import torch

from mmaccel.machine import forked_rng

from .written import read_rows

_PART = "a part of other denoisers"
# Classes that are not run, and why.
ABSENT = {
    "DreamLiteTransformer2DModel": _PART,
    "MiniMaxMusic3RVQDepthDecoder": "it writes codes one after the other, and no sampler steps it",
    "MotionAdapter": _PART,
    "RFD4ProteinaTransformer": "two samplers step what one pass predicts, and its pipeline has no pipe.scheduler",
    "SanaWMLTX2RefinerTransformer3DModel": "it refines frames with keys and values that its pipeline keeps",
    "T5FilmDecoder": "diffusers has no pipeline of it any more",
    "Transformer2DModel": _PART,
    "TransformerTemporalModel": _PART,
    "UVit2DModel": "it fills masked tokens: see mmaccel.canvas for such loops",
    "WanAnimate2Transformer3DModel": "it is called with keys and values of other frames that its pipeline keeps",
}

rows = functools.partial(read_rows, "models.json")
SCALE = 0.1  # of all parameters: untrained ones may start at 0, which nothing would come out of


def build(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model of a class, the same every time, and the arguments of one call."""
    row = rows()[name]
    with forked_rng():
        torch.manual_seed(0)
        model = getattr(diffusers, name)(**{key: read(value) for key, value in row["config"].items()})
        for value in model.parameters():
            torch.nn.init.normal_(value, std=SCALE)
        inputs = {key: read(value) for key, value in row["inputs"].items()}
    return model.eval().requires_grad_(False), inputs


def read(value: Any) -> Any:
    """A value of `models.json`: tensors and what JSON lacks are dictionaries with a key of their own."""
    if isinstance(value, list):
        return [read(item) for item in value]
    if not isinstance(value, dict):
        return value
    dtype = getattr(torch, value.get("dtype", "float32"))
    makers = {
        "noise": torch.randn,
        "full": lambda shape: torch.full(shape, value["value"], dtype=dtype),
        "values": lambda values: torch.tensor(values, dtype=dtype),
        "tuple": lambda items: tuple(read(item) for item in items),
        "pairs": lambda pairs: {key: read(item) for key, item in pairs},
        "dict": lambda items: {key: read(item) for key, item in items.items()},
    }
    kind = next(key for key in makers if key in value)
    return makers[kind](value[kind])
