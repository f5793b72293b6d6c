"""What `accelerate(pipe, preset=...)` stands for on diffusion pipelines."""

from __future__ import annotations

from mmaccel.method import Method

from .encoder_reuse import EncoderReuse
from .heterogeneous_steps import HeterogeneousSteps

# The rows of docs/benchmarks/video.md that justify them have the same settings.
TRANSFORMER_PRESETS: dict[str, tuple[Method, ...]] = {
    "balanced": (HeterogeneousSteps(budget=0.5),),
    "fast": (HeterogeneousSteps(budget=0.25, forecast=0.0),),  # its row is "without forecast"
}
UNET_PRESETS: dict[str, tuple[Method, ...]] = {"balanced": (EncoderReuse(),)}
