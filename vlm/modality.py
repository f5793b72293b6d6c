"""The descriptor of language and vision-language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmaccel.modality import Modality

from .advice import ADVICE, EXAMPLE

if TYPE_CHECKING:
    from mmaccel.comparison.trial import BaseTrial
    from mmaccel.presets import Preset
    from mmaccel.testing.contract import Example

    from .command import VlmCommand


class Vlm(Modality):
    name = "vlm"
    title = "Video questions and language models"
    rank = 3
    model = "tiny-onevision"
    adapters = ("families", "decoder.adapter")
    example = EXAMPLE
    advice = ADVICE
    tab = "mmaccel.demos.app.tabs.question_tab"
    tab_title = "Video chat"

    def open(self, model: str, device: str = "cpu", dtype: Any = None) -> tuple[Any, Any]:
        from .answering import load

        return load(model, device, dtype)

    def command(self) -> VlmCommand:
        from .command import VlmCommand

        return VlmCommand()

    def trial(self) -> type[BaseTrial]:
        from .comparing import AnswerTrial

        return AnswerTrial

    def examples(self) -> list[Example]:
        from .examples import examples

        return examples()

    def presets(self) -> Mapping[str, Mapping[str, Preset]]:
        from .presets import PRESETS

        return PRESETS

    def absent_presets(self) -> Mapping[str, Mapping[str, str]]:
        from .presets import ABSENT

        return ABSENT

    def benchmarks(self) -> Mapping[str, str]:
        return {"vlm": f"{self.package}.bench.benchmark", "language": f"{self.package}.bench.language"}
