"""Push thousands of frames into a video stream, ask about the recent past on the way, and write down what drifts.

    python -m mmaccel.demos.hours_of_video --frames 10000 --output docs/benchmarks/long/video_stream

Clips of `tiny-onevision`'s world follow each other without a mark between them. Right after a clip come questions
about it. What is wanted: memory and time of a frame that stay, and answers as good at the end as at the start.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results

from .hour_of_speech import resident_bytes

MODEL = "tiny-onevision"
CHUNK = 4  # frames of a push


def clips(count: int) -> list[list[Any]]:
    """Questions of `count` held-out clips, together by clip."""
    questions = zoo.questions(MODEL, 4 * count, seed=0)
    return [list(group) for _, group in groupby(questions, key=lambda q: id(q.frames))][:count]


def push_and_ask(stream: Any, asked: list[Any], ask: bool) -> dict[str, Any]:
    """One clip, pushed in chunks; its questions, if it is time to ask."""
    frames = asked[0].frames
    began = time.process_time()
    for first in range(0, len(frames), CHUNK):
        stream.push(frames[first : first + CHUNK])
    pushing = time.process_time() - began
    return {
        "frames": stream.stats.frames,
        "milliseconds_per_frame": 1000 * pushing / len(frames),
        "remembered": stream.stats.remembered,
        "tokens": stream.stats.tokens,
        "memory_bytes": stream.stats.memory_bytes,
        "resident_bytes": resident_bytes(),
        "right": [stream.ask(q.question) == q.answer for q in asked] if ask else [],
    }


def page(result: dict[str, Any], parts: int = 10) -> str:
    rows = result["rows"]
    size = -(-len(rows) // parts)
    lines = []
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        right = [one for row in some for one in row["right"]]
        lines.append(
            (
                str(some[-1]["frames"]),
                f"{results.median(row['milliseconds_per_frame'] for row in some):.1f}",
                f"{sum(right) / len(right):.0%} of {len(right)}" if right else "",
                str(some[-1]["tokens"]),
                f"{max(row['memory_bytes'] for row in some) / 2**20:.1f}",
                f"{some[-1]['resident_bytes'] / 2**20:.0f}",
            )
        )
    headings = ("frames", "CPU ms a frame", "right", "tokens", "stream, MiB", "process, MiB")
    intro = (
        f"`{result['stream']}` on `{MODEL}`, by `python -m mmaccel.demos.hours_of_video`: clips of 32 frames one after"
        " the other, and after every tenth questions about it. The plain model, which sees that clip alone with all"
        f" its tokens, answers {result['plain_right']:.0%} of the same questions right. With the"
        " policy `window` a stream remembers the last clip; with `peak_end` and `budget` half of the memory is for the"
        " clips before it, which these questions do not mean and a model takes for the same scene."
    )
    return pages.page(result, "Hours of video", intro, {"As the stream goes on": pages.markdown(headings, lines)})


def plain_right(model: Any, processor: Any, asked: list[list[Any]]) -> float:
    """Share of right answers of the model that sees a whole clip and nothing else."""
    from mmaccel.vlm import answering

    told = [answering.ask(model, processor, q[0].frames, [one.question for one in q])[0] for q in asked]
    right = [a == one.answer for answers, q in zip(told, asked, strict=True) for a, one in zip(answers, q, strict=True)]
    return sum(right) / len(right)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--memory", type=int, default=512, help="visual tokens that are remembered (default 512)")
    parser.add_argument("--policy", default="window", help="which frames are forgotten (default window)")
    parser.add_argument("--keep", type=float, default=0.25, help="share of a frame's tokens (default 0.25)")
    parser.add_argument("--every", type=int, default=10, help="clips from one question time to the next (default 10)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True, help="path of the result without .json and .md")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model, processor = zoo.load(MODEL)
    asked = clips(args.frames // 32)
    method = vlm.StreamingCompression(keep=args.keep)
    with vlm.VideoStream(model, processor, method, memory=args.memory, policy=args.policy) as stream:
        result = results.result(
            push_and_ask(stream, one, number % args.every == args.every - 1)
            for number, one in enumerate(tqdm(asked, unit="clip"))
        )
    result["stream"] = f"vlm.VideoStream({method}, memory={args.memory}, policy={args.policy!r})"
    result["plain_right"] = plain_right(model, processor, asked[args.every - 1 :: args.every])
    args.output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    args.output.with_suffix(".md").write_text(page(result))
    tqdm.write(page(result))


if __name__ == "__main__":
    main()
