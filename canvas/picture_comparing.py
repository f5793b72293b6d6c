"""How `compare` runs, judges and shows a masked picture; its simple alternative is fewer steps."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from mmaccel.adapter import Adapter
from mmaccel.comparison.trial import BaseTrial, Metric, Shown, seeded
from mmaccel.errors import SettingError

from .comparing import CanvasTrial
from .method import PICTURES

STEPS = 12  # of AmusedPipeline, if the call says nothing
LIKENESS = Metric(
    "likeness",
    "dB to the plain picture",
    "peak signal-to-noise ratio to the plain picture of the same seed in dB; other pictures may be as good",
    ".1f",
    relative=True,
)


class PictureTrial(BaseTrial):
    """A call of the pipeline with its own arguments; each seed draws other pictures."""

    unit: ClassVar[str] = "steps"
    metrics = (LIKENESS,)
    draws = True

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        super().__init__(adapter, inputs, processor)
        if inputs.get("callback") is not None:
            raise SettingError("leave out callback=: compare runs every call several times")
        self.count = int(inputs.get("num_inference_steps", STEPS))

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Any:
        call = {**self.arguments(target, self.inputs), "output_type": "pil"}
        call.pop("return_dict", None)
        if fewer is not None:
            call["num_inference_steps"] = fewer
        with seeded(seed) as generator:
            return target(**call, generator=generator).images

    def equal(self, one: Any, other: Any) -> bool:
        return torch.equal(_pixels(one), _pixels(other))

    def judge(self, plain: Any, other: Any) -> dict[str, float]:
        error = float((_pixels(plain) - _pixels(other)).square().mean())
        return {LIKENESS.key: 10 * float(np.log10(1 / max(error, 1e-10)))}

    def show(self, output: Any) -> Shown:
        return Shown([[picture] for picture in output])


def trial_for(adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> BaseTrial:
    """The trial of a pipeline's family."""
    kind = PictureTrial if adapter.family == PICTURES else CanvasTrial
    return kind(adapter, inputs, processor)


def _pixels(pictures: Any) -> torch.Tensor:
    """In [0, 1], `[B, H, W, C]`."""
    return torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures]).float() / 255
