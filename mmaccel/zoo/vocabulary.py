"""What a small model understands, and what it says about everything else."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import PromptError


@dataclass(frozen=True)
class Vocabulary:
    """The words of a small model's tokenizer and the names of the things it can draw.

    Parameters
    ----------
    model
        Its name, for messages.
    names
        The things; a prompt has to name one.
    tokenizer
        A fast word-level tokenizer; special tokens begin with `<`.
    example
        A good prompt.
    """

    model: str
    names: list[str]
    tokenizer: Any
    example: str

    @cached_property
    def words(self) -> set[str]:
        """Every word a prompt may contain."""
        return {word for word in self.tokenizer.get_vocab() if not word.startswith("<")}

    def normalized(self, prompt: str) -> list[str]:
        """The words of a prompt as the tokenizer sees them."""
        return str(self.tokenizer.backend_tokenizer.normalizer.normalize_str(prompt)).split()

    def check(self, prompt: Any) -> None:
        """Raise a `PromptError` that lists near words, unless the model can draw the prompt."""
        if not isinstance(prompt, str) or not prompt.strip():
            raise PromptError(f"the prompt is empty: say what to draw, such as {self.example!r}")
        asked = self.normalized(prompt)
        unknown = [word for word in asked if word not in self.words]
        if unknown:
            raise PromptError(f"{self.model} does not know {unknown[0]!r}: {self._near(unknown[0])}")
        phrase = f" {' '.join(asked)} "
        if not any(f" {name} " in phrase for name in self.names):
            raise PromptError(f"{prompt!r} names no thing that {self.model} can draw: {self._near(' '.join(asked))}")

    def _near(self, word: str) -> str:
        near = difflib.get_close_matches(word, self.names, n=3, cutoff=0.6)
        near += [n for n in difflib.get_close_matches(word, sorted(self.words), n=3, cutoff=0.6) if n not in near]
        near += [name for name in self.names if word in name.split() and name not in near][:3]
        if near:
            return "near words are " + ", ".join(repr(n) for n in near)
        shown = ", ".join(self.names[i] for i in range(0, len(self.names), max(1, len(self.names) // 8)))
        return f"it knows {len(self.names)} things, such as {shown}"
