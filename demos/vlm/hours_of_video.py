"""Push an hour of video into streams, ask about the last minute every minute, and write down what drifts.

    python -m mmaccel.demos.vlm.hours_of_video --output docs/benchmarks/long/video_stream

Clips of `tiny-onevision`'s world follow each other without a mark between them, a frame every two seconds. Right after
a clip come questions about it. What is wanted: memory and time of a frame and of a question that stay, and answers as
good at the end as at the start. Streams that remember in different ways see each clip in turns.
"""

from __future__ import annotations

import time
from itertools import groupby
from typing import Any

import psutil
from tqdm import tqdm

from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results

MODEL = "tiny-onevision"
CHUNK = 4  # frames of a push
# What the language model has read when a question comes
WAYS: dict[str, dict[str, Any]] = {"": {}, "prefill=True": {"prefill": True}, "reread=None": {"reread": None}}


def clips(count: int, brief: bool, seed: int = 0) -> list[list[Any]]:
    """Questions of `count` held-out clips, together by clip."""
    questions = zoo.questions(MODEL, 4 * count, seed=seed, brief=brief)
    return [list(group) for _, group in groupby(questions, key=lambda q: id(q.frames))][:count]


def push_and_ask(stream: Any, asked: list[Any]) -> dict[str, Any]:
    """One clip, pushed in chunks, and its questions, of which the first comes right after the last frame."""
    frames = asked[0].frames
    began = time.process_time()
    for first in range(0, len(frames), CHUNK):
        stream.push(frames[first : first + CHUNK])
    pushed = time.process_time()
    answers = [stream.ask(asked[0].question)]
    told = time.process_time()
    answers += [stream.ask(q.question) for q in asked[1:]]
    return {
        "frames": stream.stats.frames,
        "milliseconds_per_frame": 1000 * (pushed - began) / len(frames),
        "question_milliseconds": 1000 * (told - pushed),
        "remembered": stream.stats.remembered,
        "tokens": stream.stats.tokens,
        "memory_bytes": stream.stats.memory_bytes,
        "resident_bytes": psutil.Process().memory_info().rss,
        "right": [answer == q.answer for answer, q in zip(answers, asked, strict=True)],
    }


def page(result: dict[str, Any], parts: int = 6) -> str:
    headings = ("frames", "CPU ms a frame", "CPU ms a question", "right", "tokens", "stream, MiB", "process, MiB")
    intro = (
        f"`{result['stream']}` on `{MODEL}`, by `python -m mmaccel.demos.vlm.hours_of_video`: clips of 32 frames one"
        f" after the other, a frame every two seconds, {result['rows'][-1]['frames'] / 1800:.1f} hours of them, and"
        " after each clip questions about it, of which the first is timed. The plain model, which sees that clip alone"
        f" with all its tokens, answers {result['plain_right']:.1%} of the same questions right. With the policy"
        " `window` a stream remembers the last clip; with `peak_end` and `budget` half of the memory is for the clips"
        " before it, which these questions do not mean and a model takes for the same scene. Each stream sees each clip"
        " in turn; time is the processor's."
    )
    ways = dict.fromkeys(row["way"] for row in result["rows"])
    tables = {way: [row for row in result["rows"] if row["way"] == way] for way in ways}
    return pages.page(
        result,
        "Hours of video",
        intro,
        {f"VideoStream({way})": pages.markdown(headings, _lines(rows, parts)) for way, rows in tables.items()},
    )


def _lines(rows: list[dict[str, Any]], parts: int) -> list[tuple[str, ...]]:
    """Medians of equal parts of a run, and what was held at the end of each; the last line is of all."""
    size = -(-len(rows) // parts)
    return [_line(rows[first : first + size]) for first in range(0, len(rows), size)] + [("all", *_line(rows)[1:])]


def _line(some: list[dict[str, Any]]) -> tuple[str, ...]:
    right = [one for row in some for one in row["right"]]
    return (
        str(some[-1]["frames"]),
        f"{results.median(row['milliseconds_per_frame'] for row in some):.1f}",
        f"{results.median(row['question_milliseconds'] for row in some):.1f}",
        f"{sum(right) / len(right):.1%} of {len(right)}",
        str(some[-1]["tokens"]),
        f"{max(row['memory_bytes'] for row in some) / 2**20:.1f}",
        f"{some[-1]['resident_bytes'] / 2**20:.0f}",
    )


def plain_right(model: Any, processor: Any, asked: list[list[Any]]) -> float:
    """Share of right answers of the model that sees a whole clip and nothing else."""
    from mmaccel.vlm import answering

    told = [answering.ask(model, processor, q[0].frames, [one.question for one in q])[0] for q in asked]
    right = [a == one.answer for answers, q in zip(told, asked, strict=True) for a, one in zip(answers, q, strict=True)]
    return sum(right) / len(right)


def measure(frames: int, memory: int, policy: str, keep: float, slow: bool) -> dict[str, Any]:
    """Every way on the same clips, clip by clip."""
    model, processor = zoo.load(MODEL)
    asked = clips(-(-frames // 32), brief=not slow)
    method = vlm.StreamingCompression(keep=keep)
    kept: dict[str, Any] = {"memory": memory, "policy": policy}
    streams = {way: vlm.VideoStream(model, processor, method, **kept, **more) for way, more in WAYS.items()}
    result = results.result(
        {"way": way, **push_and_ask(stream, one)} for one in tqdm(asked, unit="clip") for way, stream in streams.items()
    )
    result["stream"] = f"vlm.VideoStream({method}, memory={memory}, policy={policy!r})"
    result["plain_right"] = plain_right(model, processor, asked)
    return result


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        frames={"type": int, "default": 1800, "help": "frames, one every two seconds (default 1800)"},
        memory={"type": int, "default": 512, "help": "visual tokens that are remembered (default 512)"},
        policy={"default": "window", "help": "which frames are forgotten (default window)"},
        keep={"type": float, "default": 0.25, "help": "share of a frame's tokens (default 0.25)"},
        slow={"action": "store_true", "help": "clips of slow things instead of brief events"},
    )
