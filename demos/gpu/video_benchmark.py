"""Time heterogeneous steps and the step caches on the full-size Wan 2.1 shape on a GPU; under 8 minutes.

One command, no download: the weights are random, which cost what trained ones cost (and say nothing of quality)::

    python -m mmaccel.demos.gpu.video_benchmark > docs/benchmarks/video_gpu.json

480p, 81 frames, guidance on, bfloat16. A pass of that shape is measured first, and as many steps are run as fit in the
time. `--device cpu --small` tries the script out.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel

from mmaccel import video
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload

WAN_1_3B = {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30, "text_dim": 4096}
SMALL = {"num_attention_heads": 2, "attention_head_dim": 64, "ffn_dim": 256, "num_layers": 2, "text_dim": 64}
SECONDS = 420.0
# what fits in the time: a plain run, and of the others about this share of it
METHODS = (
    video.HeterogeneousSteps(budget=0.5),
    video.HeterogeneousSteps(budget=0.5, fraction=0.05),
    video.HeterogeneousSteps(budget=0.25),
    video.EasyCache(threshold=0.1),
    video.BlockCache(threshold=0.1),
)
RUNS = 4.0  # plain runs that all of them take together, one to warm up included


def build(small: bool, device: str) -> tuple[Any, dict[str, Any]]:
    """A pipeline of transformer and scheduler, and the arguments of its call."""
    sizes = SMALL if small else WAN_1_3B
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            transformer = WanTransformer3DModel(**sizes).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)
    none = dict.fromkeys(("tokenizer", "text_encoder", "vae"))
    pipe = WanPipeline(**none, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), transformer=transformer)
    pipe.set_progress_bar_config(disable=True)
    height, width, frames = (64, 64, 9) if small else (480, 832, 81)
    text = torch.randn(2, 512, sizes["text_dim"], device=device, dtype=dtype)
    call = {
        "prompt_embeds": text[:1],
        "negative_prompt_embeds": text[1:],
        "height": height,
        "width": width,
        "num_frames": frames,
        "output_type": "latent",
    }
    return pipe, call


class Denoising(Workload):
    """The latents of one call."""

    def __init__(self, pipe: Any, call: dict[str, Any], steps: int) -> None:
        self.target, self.call, self.steps = pipe, call, steps

    def run(self, target: Any, seed: int, fewer: int | None = None) -> None:
        target(**self.call, num_inference_steps=self.steps, generator=torch.Generator().manual_seed(seed))


def measured(pipe: Any, call: dict[str, Any], steps: int, entries: list[Entry]) -> list[Entry]:
    """Time entries, each once."""
    return Runner(Denoising(pipe, call, steps), entries, [0], title=f"{steps} steps").run(warm_up=False).entries


def rows(pipe: Any, call: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """One row for each method, beside a plain run."""
    measured(pipe, call, 1, [Entry(PLAIN, PLAIN)])
    (passes,) = measured(pipe, call, 2, [Entry(PLAIN, PLAIN)])
    steps = max(12, min(40, int(seconds / RUNS / (passes.seconds[0] / 2))))
    print(f"{passes.seconds[0] / 2:.2f} s a step, {steps} steps", file=sys.stderr)
    entries = [Entry(PLAIN, PLAIN), *(Entry.of(pipe, method) for method in METHODS)]
    plain, *others = measured(pipe, call, steps, entries)
    return [
        results.row(
            modality="video",
            model=f"Wan 2.1 shape, random weights, {steps} steps",
            **entry.identity(),
            **entry.timing(plain),
            **entry.work(),
            estimated_bytes=entry.samples[0].report["details"].get("estimated_bytes"),
        )
        for entry in others
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script out")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time to plan for")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "there is no CUDA device here: try --device cpu --small\n")
    pipe, call = build(arguments.small, arguments.device)
    print(json.dumps(results.result(rows(pipe, call, arguments.seconds)), indent=1))


if __name__ == "__main__":
    main()
