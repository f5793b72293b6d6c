"""Time step, block and attention methods on shapes of Wan, LTX, Flux and Stable Diffusion on a GPU; under 8 minutes.

One command, no download: the weights are random, which cost what trained ones cost (and say nothing of quality, which
the pages of the small trained models are about)::

    python -m mmaccel.demos.gpu.diffusion_benchmark > diffusion.json

Wan 2.1 1.3B of 480p and 81 frames, LTX-Video 2B of 512 x 768 and 121 frames, Flux.1 dev of 1024 x 1024, Stable
Diffusion 1.5 of 512 x 512, in bfloat16.
A step is measured first, and as many are run as fit in the time. `--device cpu --small` tries the script out.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from mmaccel import video
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload
from mmaccel.method import Method

from . import script
from .diffusion_shapes import SHAPES, build

STEPS = {  # as the pipelines take by default
    "wan-2.1-1.3b": 50,
    "ltx-video-2b": 40,
    "flux.1-dev": 28,
    "stable-diffusion-1.5": 50,
}
FEWEST = 10
SECONDS = 420.0
METHODS: tuple[Method, ...] = (
    video.HeterogeneousSteps(budget=0.5),
    video.HeterogeneousSteps(budget=0.5, fraction=0.05),
    video.HeterogeneousSteps(budget=0.25),
    video.FirstBlockCache(threshold=0.1),
    video.BlockCache(threshold=0.1),
    video.SparseAttention(budget=0.3),
    video.SparseAttention(budget=0.1),
)
UNET_METHODS: tuple[Method, ...] = (
    video.HeterogeneousSteps(budget=0.5),
    video.EncoderReuse(),
    video.EncoderReuse(parallel=5),
)
RUNS = 7.0  # plain runs that all of them take together


class Denoising(Workload):
    """The latents of one call."""

    unit = "steps"

    def __init__(self, pipe: Any, call: dict[str, Any], steps: int) -> None:
        self.target, self.call, self.steps = pipe, call, steps

    def run(self, target: Any, seed: int, fewer: int | None = None) -> None:
        steps = self.steps if fewer is None else fewer
        target(**self.call, num_inference_steps=steps, generator=torch.Generator().manual_seed(seed))


def measured(pipe: Any, call: dict[str, Any], steps: int, entries: list[Entry]) -> list[Entry]:
    """Time entries, each once."""
    return Runner(Denoising(pipe, call, steps), entries, [0], title=f"{steps} steps").run(warm_up=False).entries


def rows(name: str, pipe: Any, call: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """One row for each method, beside a plain run and one of half the steps."""
    methods = METHODS if hasattr(pipe, "transformer") else UNET_METHODS
    planned = [Entry.of(pipe, method) for method in methods]
    measured(pipe, call, 2, [Entry(PLAIN, PLAIN), *planned])  # kernels compile, and methods choose
    (passes,) = measured(pipe, call, 2, [Entry(PLAIN, PLAIN)])
    step = passes.seconds[0] / 2
    steps = max(FEWEST, min(STEPS[name], int(seconds / RUNS / step)))
    print(f"{name}: {step:.3f} s a step, {steps} steps", file=sys.stderr)
    entries = [Entry(PLAIN, PLAIN), Entry("half the steps", "simple", fewer=steps // 2)]
    entries += [Entry.of(pipe, method) for method in methods]
    plain, *others = measured(pipe, call, steps, entries)
    for entry in others:
        told = entry.samples[0].report
        yield results.row(
            modality="video",
            model=f"{name} shape, random weights",
            **entry.identity("steps"),
            **entry.timing(plain),
            **entry.work(),
            steps=steps,
            peak_bytes=entry.samples[0].peak_bytes,
            baseline_peak_bytes=plain.samples[0].peak_bytes,
            warnings=told.get("warnings", []),
        )


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the script out")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time to plan for, in all")
    arguments = script.parsed(parser)

    def found() -> Iterator[dict[str, Any]]:
        for name in arguments.shapes:
            pipe, call = build(name, arguments.small, arguments.device)
            yield from rows(name, pipe, call, arguments.seconds / len(arguments.shapes))
            del pipe, call
            gc.collect()
            if arguments.device == "cuda":
                torch.cuda.empty_cache()

    print(json.dumps(results.result(found()), indent=1))


if __name__ == "__main__":
    main()
