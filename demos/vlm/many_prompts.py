"""Answer a thousand short prompts in one session with drafts, and write down what it comes to hold.

    python -m mmaccel.demos.vlm.many_prompts --output docs/benchmarks/long/many_prompts

Each prompt is a row of words of its own, drawn by chance from those that the language model of `tiny-onevision` knows,
so that as much is new in each as can be. What is wanted: tables that stop growing where the plan says, and memory of
the process and time of an answer that stay.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from tqdm import tqdm

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.decoding.drafters.placeholders import placeholders

MODEL = "tiny-onevision"
WORDS = 24


def prompts(model: Any, count: int) -> Iterator[torch.Tensor]:
    """Tokens `[1, N]` of so many prompts."""
    words = sorted(set(range(model.config.get_text_config().vocab_size)) - placeholders(model.config))
    draw = random.Random(0)
    for _ in range(count):
        yield torch.tensor([draw.choices(words, k=WORDS)])


def answer(session: Any, ids: torch.Tensor, new: int) -> dict[str, Any]:
    """What one prompt took, and what the session holds after it."""
    began = time.process_time()
    session.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False
    )
    seconds, report = time.process_time() - began, session.report
    return {
        "seconds": seconds,
        "tokens": report.tokens,
        "passes": report.forwards,
        "learned_bytes": report.peak_extra_bytes,
        "contexts": sum(len(value) for name, value in session.memory.items() if name.endswith("successors")),
        "resident_bytes": psutil.Process().memory_info().rss,
    }


def page(result: dict[str, Any], parts: int = 10) -> str:
    headings = ("prompts", "CPU ms an answer", "tokens a pass", "contexts", "learned, MiB", "process, MiB")
    intro = (
        f"`{result['method']}` on the language model of `{MODEL}`, by `python -m mmaccel.demos.vlm.many_prompts`:"
        f" {len(result['rows'])} prompts in one session, each of {WORDS} words drawn by chance, with answers of"
        f" {max(row['tokens'] for row in result['rows'])} tokens. Before the run its plan says that it holds"
        f" {'; '.join(result['held'])}. Time is the processor's, the rest is what stands at the end of a line."
    )
    return pages.page(
        result, "A thousand prompts", intro, {"In one session": pages.markdown(headings, _lines(result["rows"], parts))}
    )


def _lines(rows: list[dict[str, Any]], parts: int) -> list[tuple[str, ...]]:
    size = -(-len(rows) // parts)
    return [_line(first + size, rows[first : first + size]) for first in range(0, len(rows), size)]


def _line(number: int, some: list[dict[str, Any]]) -> tuple[str, ...]:
    tokens, passes = (sum(row[name] for row in some) for name in ("tokens", "passes"))
    return (
        str(number),
        f"{1000 * results.median(row['seconds'] for row in some):.0f}",
        f"{tokens / passes:.2f}",
        str(some[-1]["contexts"]),
        f"{some[-1]['learned_bytes'] / 2**20:.1f}",
        f"{some[-1]['resident_bytes'] / 2**20:.0f}",
    )


def measure(count: int, new: int) -> dict[str, Any]:
    """All prompts, one by one in one session."""
    model, _ = zoo.load(MODEL)
    method = vlm.FusedDraft()
    with mmaccel.accelerate(model, method) as session:
        asked = tqdm(prompts(model, count), total=count, unit="prompt")
        result = results.result(answer(session, ids, new) for ids in asked)
    result["method"], result["held"] = str(method), [str(held) for held in method.held()]
    return result


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        prompts={"type": int, "default": 1000, "dest": "count"},
        new={"type": int, "default": 24, "help": "tokens of an answer (default 24)"},
    )
