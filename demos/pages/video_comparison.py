"""The README's clips: the same prompt filmed plainly, faster, and with fewer steps, none picked::

python -m mmaccel.demos.pages.video_comparison docs/video_comparison.png
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mmaccel
from mmaccel import zoo
from mmaccel.files import clips
from mmaccel.video import HeterogeneousSteps, quality

from ..training.wan.train import contact_sheet

PROMPTS = ("red heart stays, gray background", "soccer ball moves right, green background")
STEPS = 40
ROWS: tuple[tuple[str, Any, int], ...] = (
    ("plain, 40 steps", None, STEPS),
    ("HeterogeneousSteps(budget=0.5)", HeterogeneousSteps(budget=0.5), STEPS),
    ("HeterogeneousSteps(budget=0.25, forecast=0)", HeterogeneousSteps(budget=0.25, forecast=0.0), STEPS),
    ("plain, 10 steps", None, STEPS // 4),
)


def main(output: Path) -> None:
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    made: list[clips.Clip] = []
    labels = []
    for prompt in PROMPTS:
        reference: clips.Clip = []
        for label, method, steps in ROWS:
            session = mmaccel.accelerate(pipe, method) if method else None
            call = {"num_inference_steps": steps, "output_type": "pil", "generator": torch.Generator().manual_seed(0)}
            began = time.perf_counter()
            clip = (session or pipe)(prompt, **call).frames[0]
            seconds = time.perf_counter() - began
            if session:
                session.remove()
            reference = reference or clip
            near = "" if clip is reference else f"   {quality.psnr(reference, clip):.0f} dB to the plain clip"
            made.append(clip)
            labels.append(f"{label}   {seconds:.1f} s{near}")
    frames = np.stack([[np.asarray(frame) for frame in clip] for clip in made]) / 255
    contact_sheet(frames, labels).convert("P", palette=1, colors=256).save(output, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
