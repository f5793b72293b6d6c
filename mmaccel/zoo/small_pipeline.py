"""What pipelines of the zoo add to those of diffusers that they are."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from diffusers.configuration_utils import ConfigMixin

from .vocabulary import Vocabulary


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
