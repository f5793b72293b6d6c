"""What a pipeline drew, and the similarity of two outputs: PSNR and SSIM of tensors and of clips."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmaccel.errors import SettingError, required
from mmaccel.files.clips import Clip
from mmaccel.stepping.tensors import tensors

NOT_FINITE = -100.0  # dB: a number that JSON and plots can hold, as far below as equal outputs are above
NAME_IT = "name what is to be compared among the arguments, such as output='images' or output='videos'"


def drawn(output: Any) -> Any:
    """What a pipeline returned to look at: the first of its outputs, or of the names that a modular one was asked for.

    Raises
    ------
    SettingError
        If there is nothing to look at, as where a modular pipeline returns all its state.
    """
    from diffusers.utils.outputs import BaseOutput

    found = output[0] if isinstance(output, tuple | BaseOutput) else output
    if isinstance(found, dict):
        found = next(iter(found.values()), None)
    if not isinstance(found, torch.Tensor | np.ndarray | Image.Image | list | tuple):
        raise SettingError(f"the pipeline returned a {type(found).__name__} and no pictures: {NAME_IT}")
    return found


def as_tensor(output: Any) -> torch.Tensor:
    """What a pipeline drew (pictures, arrays or latents, in its own structure) as one float tensor, but no sound."""
    return torch.cat([x.float().flatten() for x in tensors(_arrays(drawn(output)))])


def _arrays(value: Any) -> Any:
    if isinstance(value, Image.Image):
        return torch.from_numpy(np.asarray(value).copy()) / 255
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, list | tuple):
        return [_arrays(item) for item in value]
    return value


def decoded(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Frames `[B, 3, T, H, W]` in [-1, 1] of latents `[B, C, T, H, W]`, scaled as in the pipelines of Wan."""
    latents = latents.to(vae.dtype)
    mean, deviation = (
        torch.tensor(values).view(1, -1, 1, 1, 1).to(latents)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return vae.decode(latents * deviation + mean, return_dict=False)[0]


def pixels(clip: Clip) -> torch.Tensor:
    """Frames as float32 `[F, 3, H, W]` in [0, 1]."""
    frames = np.stack([np.asarray(frame.convert("RGB")) for frame in clip])
    return torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255


def tensor_psnr(reference: torch.Tensor, output: torch.Tensor) -> float:
    """Peak signal-to-noise ratio in dB; the peak is 1 for pictures, and the range of the reference for latents.

    An output with NaN or infinities has -100.
    """
    error = float((reference - output).square().mean())
    if not math.isfinite(error):
        return NOT_FINITE
    low, high = float(reference.min()), float(reference.max())
    peak = 1.0 if low >= 0 and high <= 1 else high - low
    return 20 * math.log10(peak) - 10 * math.log10(max(error, 1e-12))


def psnr(reference: Clip, clip: Clip) -> float:
    """Peak signal-to-noise ratio of a clip in dB, from the squared error over all frames; 100 where they are equal."""
    return min(100.0, tensor_psnr(pixels(reference), pixels(clip)))


def ssim(reference: Clip, clip: Clip) -> float:
    """Structural similarity (Wang and others, 2004), the mean over frames."""
    metrics = required("torchmetrics.functional.image", 'SSIM needs torchmetrics: pip install "mmaccel[metrics]"')
    return float(metrics.structural_similarity_index_measure(pixels(clip), pixels(reference), data_range=1.0))


def distance(reference: Clip, clip: Clip) -> str:
    """How far a clip is from another one, in words: PSNR, and SSIM where torchmetrics is installed."""
    said = f"{psnr(reference, clip):.1f} dB PSNR"
    if importlib.util.find_spec("torchmetrics") is None:
        return said
    return f"{said}, {ssim(reference, clip):.3f} SSIM"
