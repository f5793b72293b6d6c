"""What `accelerate(pipe, preset=...)` stands for on diffusion pipelines."""

from __future__ import annotations

from mmaccel.presets import Preset

from .heterogeneous.heterogeneous_steps import HeterogeneousSteps

MEASURED = {"model": "tiny-wan, 40 steps"}
UNET = {"model": "tiny-unet, DDIM, 50 steps"}
FEW = "by UniPC and DPM++ with 20 or 25 steps as few steps kept about as much of a picture at a quarter"
SAMPLER = "with Euler's steps; by UniPC, Wan's own sampler, the worst prompts move further"

PRESETS: dict[str, dict[str, Preset]] = {
    "diffusion transformer": {
        "balanced": Preset((HeterogeneousSteps(),), "video", MEASURED, SAMPLER),
        "fast": Preset((HeterogeneousSteps(budget=0.25),), "video", MEASURED, SAMPLER),
    },
    "diffusion unet": {
        "balanced": Preset((HeterogeneousSteps(),), "unet", UNET, FEW),
        "fast": Preset((HeterogeneousSteps(budget=0.25),), "unet", UNET, FEW),
    },
}

_EXACT = "all that makes a diffusion pipeline faster here leaves out work that its output depends on"
_IN_BLOCKS = (
    "what helps a pipeline that draws in blocks depends on the call: name video.BlockRouter() and give the call a small"
    " model, or video.RollingContext() for long videos"
)
ABSENT: dict[str, dict[str, str]] = {
    "diffusion transformer": {"exact": _EXACT},
    "diffusion in blocks": {"exact": _EXACT, "balanced": _IN_BLOCKS, "fast": _IN_BLOCKS},
    "diffusion unet": {"exact": _EXACT},
}
