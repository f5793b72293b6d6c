"""Clips of the same prompts, filmed plainly, faster, and with fewer steps, none picked::

python -m mmaccel.demos.pages.video_comparison docs

Writes `video_comparison.png`, of one prompt, for the README, and `video_comparisons.png`, of two, for the quick start.
The prompts are the first of the benchmark in which two things move. The speed-ups are those of the benchmark's
committed rows; nothing is timed here. The files note them, and a test fails where the rows have others.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mmaccel
from mmaccel import zoo
from mmaccel.comparison import results
from mmaccel.files import clips
from mmaccel.presets import presets_of
from mmaccel.video import quality
from mmaccel.video.bench.cases import MotionPrompt, scenes
from mmaccel.video.bench.sampling import STEPS

from ..training.wan.train import contact_sheet
from .figures import noted

ROWS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "video.json"
PROMPTS, FEWER = 2, 10
LABEL = "{}   {}   {:.0f} dB to the plain clip"


def main(folder: Path) -> None:
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    lively = [scene for scene in scenes(16) if scene.motion == "lively"][:PROMPTS]
    made = [filmed(pipe, scene) for scene in lively]
    save(made[0], folder / "video_comparison.png")
    save(sum(made, []), folder / "video_comparisons.png")


def save(made: list[tuple[clips.Clip, str]], output: Path) -> None:
    """Write clips under their labels as one picture."""
    frames = np.stack([[np.asarray(frame) for frame in clip] for clip, _ in made]) / 255
    picture = contact_sheet(frames, [label for _, label in made])
    picture.convert("P", palette=1, colors=256).save(output, optimize=True, pnginfo=noted(speedups()))


def filmed(pipe: Any, scene: MotionPrompt) -> list[tuple[clips.Clip, str]]:
    """The clips of one prompt with their labels: plain, by the presets, and with fewer steps."""
    plain = run(pipe, scene, STEPS)
    found = [(plain, f"plain, {STEPS} steps: {scene.prompt}")]
    for name in presets_of("video", "diffusion transformer"):
        with mmaccel.accelerate(pipe, preset=name) as fast:
            clip = run(fast, scene, STEPS)
        label = f'preset="{name}", {STEPS} steps'
        found.append((clip, LABEL.format(label, speedups()[name], quality.psnr(plain, clip))))
    clip = run(pipe, scene, FEWER)
    return [*found, (clip, LABEL.format(f"plain, {FEWER} steps", speedups()["fewer"], quality.psnr(plain, clip)))]


def run(target: Any, scene: MotionPrompt, steps: int) -> clips.Clip:
    generator = torch.Generator().manual_seed(scene.seed)
    return target(scene.prompt, num_inference_steps=steps, output_type="pil", generator=generator).frames[0]


def speedups() -> dict[str, str]:
    """What each preset, and so few steps, were measured to gain."""
    gains = {name: preset.row["speedup"] for name, preset in presets_of("video", "diffusion transformer").items()}
    rows = results.load(ROWS)["rows"]
    gains["fewer"] = next(row["speedup"] for row in rows if row.get("label") == f"{FEWER} steps")
    return {name: f"{gain:.1f}x" for name, gain in gains.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
