"""How many frames a second the clips of a pipeline have."""

from __future__ import annotations

import inspect
from typing import Any

USUAL = 8  # of CogVideoX, and of the shipped models
# By the beginning of a pipeline's name, as diffusers' own examples write the clips of those whose call does not say.
RATES = {
    "Allegro": 15,
    "AnyFlow": 16,
    "ChronoEdit": 16,
    "Cosmos2_5": 16,
    "Cosmos2_5_Transfer": 30,
    "Helios": 24,
    "HunyuanSkyreels": 15,
    "HunyuanVideo": 15,
    "HunyuanVideo15ImageToVideo": 24,
    "HunyuanVideoFramepack": 30,
    "Kandinsky5": 24,
    "Kandinsky6SR": 24,
    "LucyEdit": 24,
    "Mochi": 30,
    "MotifVideo": 24,
    "SanaImageToVideo": 16,
    "SanaVideo": 16,
    "SkyReelsV2": 24,
    "Wan": 16,
    "WanAnimate": 30,
}


def rate_of(pipe: Any) -> float:
    """Frames a second of a pipeline's clips: as its call says, or as its class is known to make them, or 8."""
    call = inspect.signature(type(pipe).__call__).parameters
    said = (call[name].default for name in ("frame_rate", "fps") if name in call)
    rate = next((value for value in said if isinstance(value, int | float)), None) or _of_version(pipe)
    name = type(pipe).__name__
    known = [beginning for beginning in RATES if name.startswith(beginning)]
    return rate or (RATES[max(known, key=len)] if known else USUAL)


def _of_version(pipe: Any) -> int | None:
    """That of a model whose class another version shares at another rate; None for others."""
    if getattr(getattr(pipe, "config", None), "expand_timesteps", False):  # Wan 2.2 TI2V-5B
        return 24
    patched = getattr(getattr(pipe, "transformer", None), "config", None)
    is_later = type(pipe).__name__.startswith("CogVideoX") and getattr(patched, "patch_size_t", None)
    return 16 if is_later else None  # CogVideoX 1.5
