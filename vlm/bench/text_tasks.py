"""What the benchmark of drafts asks a language model to write: seven tasks, on texts that nothing was tuned to."""

from __future__ import annotations

import inspect
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .language_texts import text_of

LETTERS = 700  # of a text that is given
SOURCES = (  # kinds of text, and their seeds
    ("dialogue", 11), ("instructions", 12), ("prose", 13), ("log", 14),
    ("dialogue", 15), ("instructions", 16), ("prose", 17), ("log", 18),
)  # fmt: skip
CHAT = (
    "What should I look at first when I rent a flat in a city that I do not know?",
    "Why do leaves change their colour in autumn?",
    "My son is afraid of the dark. What can I do?",
    "Tell me a short story about a lighthouse keeper and a fox.",
    "How do I keep basil alive on a window sill in winter?",
    "What is the difference between a lake and a lagoon?",
    "I slept badly for a week. Which habits could help me?",
    "Write a birthday greeting for a colleague who likes to climb.",
)
CODE: tuple[Callable[..., Any], ...] = (
    statistics.median_low, textwrap.indent, statistics.harmonic_mean, inspect.cleandoc,
    statistics.mode, textwrap.shorten, statistics.multimode, inspect.getmodulename,
)  # fmt: skip
SWAPPED = {  # a word of each kind of text, and what is to stand for it
    "dialogue": ("euros", "francs"),
    "instructions": ("water", "broth"),
    "prose": ("the", "this"),
    "log": ("INFO", "NOTE"),
}


@dataclass(frozen=True)
class Task:
    """A prompt, and the text that its answer is expected to be like, if there is one."""

    kind: str
    prompt: str
    source: str | None = None


def tasks(count: int) -> list[Task]:
    """So many prompts of each kind, at most eight; those of a kind follow each other."""
    texts = [(name, text_of(name, LETTERS, seed)) for name, seed in SOURCES[:count]]
    return [
        *(Task("free chat", question) for question in CHAT[:count]),
        *(Task("question on a text", f"{text}\n\nWhat is this about? Explain it to a child.") for _, text in texts),
        *(Task("summary", f"Summarize the following text in three sentences:\n\n{text}") for _, text in texts),
        *(_rewriting(name, text) for name, text in texts),
        *(_code(function) for function in CODE[:count]),
        *(_transcript(text) for _, text in texts),
        *(Task("copy", f"Repeat the following text word for word:\n\n{text}", text) for _, text in texts),
    ]


def _rewriting(name: str, text: str) -> Task:
    old, new = SWAPPED[name]
    asked = f"Rewrite the following text, write {new!r} for every {old!r}, and change nothing else:\n\n{text}"
    return Task("rewrite", asked, text)


def _code(function: Callable[..., Any]) -> Task:
    source = inspect.getsource(function)
    asked = f"Add a comment to each step of this function, and write it out in full:\n\n```python\n{source}```"
    return Task("code", asked, source)


def _transcript(text: str) -> Task:
    """Words without marks, as a recogniser may write them."""
    words = " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
    asked = f"Set the marks and capital letters in this transcript, and change no word:\n\n{words}"
    return Task("transcript", asked, words)


def prompt(tokenizer: Any, given: Sequence[Task]) -> dict[str, torch.Tensor]:
    """Inputs of `generate` for a batch of tasks, shorter prompts padded on the left."""
    talks = [[{"role": "user", "content": task.prompt}] for task in given]
    tokenizer.padding_side = "left"
    found: dict[str, torch.Tensor] = tokenizer.apply_chat_template(
        talks, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=len(talks) > 1
    )
    return dict(found)
