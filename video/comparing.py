"""How `compare` runs, judges and shows a diffusion pipeline; its simple alternative is fewer steps."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from mmaccel.adapter import Adapter
from mmaccel.comparison.trial import BaseTrial, Metric, Shown, seeded
from mmaccel.errors import SettingError, UnsupportedTargetError

from . import quality
from .calling import calling
from .families.rates import rate_of
from .generation import check_arguments

PSNR = Metric("psnr", "PSNR dB", "PSNR in dB to the output of the plain pipeline, mean over seeds; 100 if equal", ".1f")
SSIM = Metric("ssim", "SSIM", "structural similarity to the output of the plain pipeline, mean over seeds")
SMALLEST = 11  # pixels: the window of SSIM
OWN_SCHEDULES = ("timesteps", "sigmas", "guidance_schedule")


class VideoTrial(BaseTrial):
    """A pipeline call that denoises a clip or a picture; the seed decides the noise."""

    unit: ClassVar[str] = "steps"

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        super().__init__(adapter, inputs, processor)
        if isinstance(adapter.target, torch.nn.Module):
            raise UnsupportedTargetError(
                f"a {type(adapter.target).__name__} makes no clip by itself: compare its pipeline, WanPipeline(...)"
            )
        call = inspect.signature(type(adapter.target).__call__).parameters
        asked = {**{name: parameter.default for name, parameter in call.items()}, **inputs}
        if asked.get("output", "") is None:  # of modular pipelines
            raise SettingError(f"the call would return the pipeline's whole state: {quality.NAME_IT}")
        steps = asked.get("num_inference_steps")
        given = next((name for name in OWN_SCHEDULES if asked.get(name) is not None), None)
        self.count = steps if isinstance(steps, int) and given is None else 0
        self.no_simple = f"{given}= fixes the steps" if given else "the pipeline does not say how many steps it makes"
        self.seedless = "latents= fixes the noise" if inputs.get("latents") is not None else ""
        self.metrics = (PSNR, SSIM) if importlib.util.find_spec("torchmetrics") else (PSNR,)

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Any:
        arguments = self.arguments(target, self.inputs)
        check_arguments(self.target, [name for name in arguments if name not in self.taken])
        if fewer is not None:
            arguments["num_inference_steps"] = fewer
        with calling(target, arguments), seeded(seed) as generator:
            return quality.drawn(target(**arguments, generator=generator))

    def equal(self, one: Any, other: Any) -> bool:
        return torch.equal(_tensor(one), _tensor(other))

    def judge(self, plain: Any, other: Any) -> dict[str, float]:
        reference, output = _tensor(plain), _tensor(other)
        found = {PSNR.key: min(100.0, quality.tensor_psnr(reference, output))}
        if SSIM in self.metrics and _is_seen(plain):
            pairs = zip(_clips(plain), _clips(other), strict=True)
            values = [quality.ssim(one, two) for one, two in pairs if min(one[0].size) >= SMALLEST]
            if values:
                found[SSIM.key] = sum(values) / len(values)
        return found

    def show(self, output: Any) -> Shown:
        return Shown(_clips(output), rate=rate_of(self.target)) if _is_seen(output) else Shown()


def _is_seen(output: Any) -> bool:
    """Whether an output is pictures rather than latents."""
    if isinstance(output, torch.Tensor | np.ndarray):
        array = torch.as_tensor(output).nan_to_num()  # what is NaN is drawn black
        axis = -1 if isinstance(output, np.ndarray) else -3
        is_picture = array.ndim in (4, 5) and array.shape[axis] == 3
        return is_picture and float(array.min()) >= 0 and float(array.max()) <= 1
    return True


def _clips(output: Any) -> list[list[Image.Image]]:
    """The frames of each row of a batch, one where the pipeline makes pictures, from any output type."""
    if isinstance(output, torch.Tensor):  # [B, (F,) C, H, W]
        output = output.movedim(-3, -1).float().cpu().numpy()
    if isinstance(output, np.ndarray):
        rows = output if output.ndim == 5 else output[:, None]
        return [VaeImageProcessor.numpy_to_pil(row) for row in np.nan_to_num(rows)]
    return [list(row) if isinstance(row, list | tuple) else [row] for row in output]


def _tensor(output: Any) -> torch.Tensor:
    """An output as one tensor; pictures in [0, 1]."""
    if isinstance(output, torch.Tensor | np.ndarray):
        return torch.as_tensor(output).float().cpu()
    return torch.stack([quality.pixels(clip) for clip in _clips(output)])
