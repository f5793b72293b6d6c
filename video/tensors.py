"""Nearness of tensors."""

from __future__ import annotations

import math

import torch


def psnr(reference: torch.Tensor, output: torch.Tensor) -> float:
    """Peak signal-to-noise ratio in dB; the peak is 1 for pictures, and the range of the reference for latents."""
    low, high = float(reference.min()), float(reference.max())
    peak = 1.0 if low >= 0 and high <= 1 else high - low
    error = float((reference - output).square().mean())
    return 20 * math.log10(peak) - 10 * math.log10(max(error, 1e-12))
