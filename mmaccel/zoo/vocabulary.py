"""What a small model understands, and what it says about everything else."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import PromptError


def facts_of(folder: Path) -> dict[str, Any]:
    """What `training.json` of a model tells: the things that it knows, and how it was trained."""
    return json.loads((folder / "training.json").read_text(encoding="utf-8"))


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
        """Raise a `PromptError` that says what comes near, unless the model can draw the prompt."""
        if not isinstance(prompt, str) or not prompt.strip():
            raise PromptError(f"the prompt is empty: say what to draw, such as {self.example!r}")
        asked = self.normalized(prompt)
        unknown = [word for word in asked if word not in self.words]
        if unknown:
            near = difflib.get_close_matches(unknown[0], [*self.names, *sorted(self.words)], n=3, cutoff=0.6)
            raise PromptError(f"{self.model} does not know {unknown[0]!r}: {self._such_as('near words are', near)}")
        phrase = f" {' '.join(asked)} "
        if not any(f" {name} " in phrase for name in self.names):
            raise PromptError(f"{prompt!r} {self._things(asked)}")

    def _things(self, asked: list[str]) -> str:
        """What a prompt lacks: the rest of a name, such as 'red heart' for 'heart', or a thing at all."""
        fuller = [name for name in self.names if name.split()[-1] in asked]
        if fuller:
            return self._such_as(f"is not enough for {self.model}: say which thing, such as", fuller[:4])
        near = [name for name in self.names if set(name.split()) & set(asked)]
        near = near or difflib.get_close_matches(" ".join(asked), self.names, n=3, cutoff=0.6)
        return f"names no thing that {self.model} can draw: {self._such_as('near are', near[:4])}"

    def _such_as(self, what: str, near: list[str]) -> str:
        """What comes near, or some of all there is where nothing does."""
        if near:
            return f"{what} {', '.join(repr(name) for name in dict.fromkeys(near))}"
        shown = ", ".join(self.names[i] for i in range(0, len(self.names), max(1, len(self.names) // 8)))
        return f"it knows {len(self.names)} things, such as {shown}"
