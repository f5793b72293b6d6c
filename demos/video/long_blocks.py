"""Draw ever longer videos in blocks, and count what a block takes and whether it still shows what was asked for.

    python -m mmaccel.demos.video.long_blocks --output docs/benchmarks/long/long_blocks

On the shipped `tiny-far`, which was trained on nine blocks. Things that stay where they are can be recognized in every
frame of a video, however long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from statistics import mean
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import video, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.demos.video.recognized_things import Asked
from mmaccel.video.quality import decoded

MODEL = "tiny-far"
PLAIN = "plain"
WAYS: dict[str, video.RollingContext | None] = {
    PLAIN: None,
    "RollingContext()": video.RollingContext(),
    "RollingContext(first=0)": video.RollingContext(first=0),
    "RollingContext(blocks=4)": video.RollingContext(blocks=4),
}
PLAIN_BLOCKS = 36  # the most that the plain pipeline is given time for
TAIL = 3  # blocks at the end that are judged, and whose time is told
FRAMES = 8  # of a block
HEADINGS = ("blocks", "way", "video", "a block at the end", "keys and values", "things recognized at the end", "worst")


def measure(blocks: list[int], clips: int, steps: int, seed: int) -> Iterator[dict[str, Any]]:
    """The result after each length."""
    pipe = zoo.load(MODEL)
    pipe.set_progress_bar_config(disable=True)
    prompts = zoo.prompts(MODEL, clips, seed, things=1, moving=0)
    rows: list[dict[str, Any]] = []
    for count in blocks:
        for number, prompt in enumerate(tqdm(prompts, desc=f"{count} blocks", unit="clip")):
            for name, method in WAYS.items():
                if name != PLAIN or count <= PLAIN_BLOCKS:
                    row = _drawn(pipe, method, prompt, count, steps, seed + number)
                    rows.append({"blocks": count, "way": name, "prompt": prompt, **row})
        yield {**results.result(rows), "steps": steps}


def _drawn(
    pipe: Any, method: video.RollingContext | None, prompt: str, blocks: int, steps: int, seed: int
) -> dict[str, Any]:
    """Seconds, bytes and quality of one video."""
    times: list[float] = []
    kept: list[int] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        kept.append(sum(tensor.nbytes for tensor in args[5].values()))

    def tick(pipeline: Any, step: int, now: Any, given: dict[str, Any]) -> dict[str, Any]:
        times.append(time.perf_counter())
        return given

    call = {"num_frames": FRAMES * blocks - 1, "num_inference_steps": steps, "guidance_scale": 1.0}
    call |= {"generator": torch.Generator().manual_seed(seed), "output_type": "latent", "callback_on_step_end": tick}
    hook = pipe.transformer.blocks[0].register_forward_pre_hook(note)
    began = time.perf_counter()
    with hook, nullcontext(pipe) if method is None else mmaccel.accelerate(pipe, method) as target:
        latents = target(prompt, **call).frames
    seconds = time.perf_counter() - began
    shown = Asked(prompt).recognized(_last(pipe, latents))
    told = {"seconds": seconds, "at_the_end": (times[-1] - times[-1 - TAIL * steps]) / TAIL, "recognized": shown}
    return {**told, "bytes": kept[-1] * len(pipe.transformer.blocks)}


@torch.no_grad()
def _last(pipe: Any, latents: torch.Tensor) -> torch.Tensor:
    """The frames of the last blocks, `[T, 3, H, W]`, decoded behind a block that is left out again."""
    block = pipe.transformer.config.chunk_partition[0]
    frames = decoded(pipe.vae, latents[:, :, -(TAIL + 1) * block :])[0].transpose(0, 1)
    return (frames[-TAIL * FRAMES :] / 2 + 0.5).clamp(0, 1)


def page(result: dict[str, Any]) -> str:
    """Its Markdown page."""
    rows = result["rows"]
    clips = len({row["prompt"] for row in rows})
    intro = (
        f"`python -m mmaccel.demos.video.long_blocks`: {clips} video{'s' * (clips > 1)} of each length by the shipped"
        f" `tiny-far`, which was trained on nine blocks of {FRAMES} frames, {result['steps']} steps, of things that"
        f" stay. Seconds are means over them, of the whole video and of one of its last {TAIL} blocks; keys and values"
        f" are those of all layers at the end. A thing is recognized in a frame of the last {TAIL} blocks if its"
        " picture fits there better than that of any other. The plain pipeline was given no time for more than"
        f" {PLAIN_BLOCKS} blocks. All is in [long_blocks.json](long_blocks.json)."
    )
    lines = [
        _line([row for row in rows if (row["blocks"], row["way"]) == pair])
        for pair in dict.fromkeys((row["blocks"], row["way"]) for row in rows)
    ]
    return pages.page(result, "Long videos in blocks", intro, {"Length": pages.markdown(HEADINGS, lines)})


def _line(rows: list[dict[str, Any]]) -> list[str]:
    shown = [row["recognized"] for row in rows]
    return [
        str(rows[0]["blocks"]),
        rows[0]["way"],
        f"{mean(row['seconds'] for row in rows):.1f} s",
        f"{mean(row['at_the_end'] for row in rows):.2f} s",
        f"{rows[0]['bytes'] / 2**20:.1f} MiB",
        f"{mean(shown):.0%}",
        f"{min(shown):.0%}",
    ]


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        blocks={"type": int, "nargs": "+", "default": [9, 18, 36, 200], "help": "lengths of videos"},
        clips={"type": int, "default": 4, "help": "prompts (default 4)"},
        steps={"type": int, "default": 4, "help": "of a block (default 4)"},
        seed={"type": int, "default": 200},
    )
