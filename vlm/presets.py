"""What `accelerate(model, preset=...)` stands for on vision-language models."""

from __future__ import annotations

from mmaccel.method import Method

from .holitom import HoliTom

# Shares of the visual tokens at which the paper loses nothing, and one hundredth, on four benchmarks.
PRESETS: dict[str, tuple[Method, ...]] = {"balanced": (HoliTom(keep=0.25),), "fast": (HoliTom(keep=0.1),)}
