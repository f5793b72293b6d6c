"""What pipelines of the zoo add to those of diffusers that they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers.configuration_utils import ConfigMixin
from transformers import AutoTokenizer

from .vocabulary import Vocabulary
from .weights import load_pretrained


def loaded(folder: Path, **parts: Any) -> dict[str, Any]:
    """Parts of a pipeline by their classes, in float32 on the CPU, and its tokenizer, from folders of their names."""
    models = {name: load_pretrained(cls, folder / name, dtype=torch.float32) for name, cls in parts.items()}
    return {**models, "tokenizer": AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False)}


class SmallPipeline(ConfigMixin):
    """A mix-in before a pipeline's class, which says when a prompt is outside the model's small world.

    Saved, it has the name of diffusers' class, which `DiffusionPipeline` can open.

    Attributes
    ----------
    example
        Name of the model, and a good prompt.
    facts
        What `training.json` tells, such as `names`, `backgrounds` and how the model was trained.
    """

    example: ClassVar[tuple[str, str]]
    facts: dict[str, Any]
    tokenizer: Any

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of its prompts."""
        name, prompt = self.example
        return Vocabulary(name, self.facts["names"], self.tokenizer, prompt)

    def check_prompts(self, prompt: str | list[str] | None) -> None:
        """Raise a `PromptError` if the model cannot draw one of them."""
        if prompt is not None:
            for text in prompt if isinstance(prompt, list) else [prompt]:
                self.vocabulary.check(text)

    def to_json_string(self) -> str:
        """The configuration, with the class of diffusers."""
        config = json.loads(super().to_json_string())
        known = next(cls for cls in type(self).__mro__ if cls.__module__.startswith("diffusers."))
        return json.dumps({**config, "_class_name": known.__name__}, indent=2, sort_keys=True) + "\n"
