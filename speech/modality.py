"""The descriptor of recognisers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmaccel.modality import Modality

if TYPE_CHECKING:
    from mmaccel.comparison.trial import BaseTrial

    from .command import SpeechCommand

EXAMPLE = """import mmaccel
from mmaccel import speech

model, processor = speech.load("moonshine-tiny")
samples = speech.read_audio("talk.wav")
inputs = processor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs)
    print(processor.batch_decode(tokens, skip_special_tokens=True)[0])
    print(fast.report)"""


class Speech(Modality):
    name = "speech"
    title = "Speech"
    rank = 4
    model = "moonshine-tiny"
    example = EXAMPLE
    tab = "mmaccel.demos.app.tabs.speech_tab"
    tab_title = "Speech"
    serving = "mmaccel.speech.serving.transcriptions"
    families_section = "mmaccel.demos.families.speech_section"

    def models(self) -> tuple[str, ...]:
        from .families.weights import names

        return names()

    def open(self, model: str, device: str = "cpu", dtype: Any = None) -> tuple[Any, Any]:
        from .families.weights import load

        return load(model, device, dtype)

    def command(self) -> SpeechCommand:
        from .command import SpeechCommand

        return SpeechCommand()

    def trial(self) -> type[BaseTrial]:
        from .comparing import RecognizerTrial

        return RecognizerTrial

    def benchmarks(self) -> Mapping[str, str]:
        return {"speech": f"{self.package}.bench.benchmark"}
