"""The descriptor of language and vision-language models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mmaccel.modality import Modality

from .arguments import READER

if TYPE_CHECKING:
    from mmaccel.adapter import Adapter
    from mmaccel.cli.command import Command
    from mmaccel.comparison.trial import BaseTrial

    from .command import VlmCommand

EXAMPLE = """import mmaccel
from mmaccel import vlm, zoo

model, processor = zoo.load("tiny-onevision")
asked = zoo.questions("tiny-onevision", 1)[0]
inputs = processor(videos=[asked.frames], text=asked.question, return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, max_new_tokens=8)
    print(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), asked.answer)
    print(fast.report)"""


class Vlm(Modality):
    name = "vlm"
    title = "Video questions and language models"
    rank = 3
    model = "tiny-onevision"
    adapters = ("families", "decoder.adapter")
    example = EXAMPLE
    tab = "mmaccel.demos.app.tabs.question_tab"
    tab_title = "Video chat"
    serving = "mmaccel.vlm.serving"
    families_section = "mmaccel.demos.families.visual_section"

    def recognizes(self, model: str) -> bool:
        from mmaccel import zoo

        own = zoo.like(model) or model
        return super().recognizes(own) or own == READER

    def open(self, model: str, device: str = "cpu", dtype: Any = None) -> tuple[Any, Any]:
        from mmaccel import zoo

        from . import answering, reading

        return (reading if zoo.like(model) == READER else answering).load(model, device, dtype)

    def command(self) -> VlmCommand:
        from .command import VlmCommand

        return VlmCommand()

    def more_commands(self) -> Mapping[str, Command]:
        from .document_command import DocumentCommand

        return {"document": DocumentCommand()}

    def trial(self) -> Callable[..., BaseTrial]:
        from .comparing import AnswerTrial
        from .comparing_encoders import EncoderTrial

        def chosen(adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> BaseTrial:
            return (EncoderTrial if adapter.exclusive else AnswerTrial)(adapter, inputs, processor)

        return chosen

    def benchmarks(self) -> Mapping[str, str]:
        names = {"vlm": "benchmark", "language": "language", "text": "text", "pages": "pages"}
        return {name: f"{self.package}.bench.{module}" for name, module in names.items()}
