"""What the documentation says of the methods of recognisers, and how it calls them."""

from __future__ import annotations

from mmaccel.modality import Advice

EXAMPLE = """import mmaccel
from mmaccel import speech

model, processor = speech.load("moonshine-tiny")
samples = speech.read_audio("talk.wav")
inputs = processor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs)
    print(processor.batch_decode(tokens, skip_special_tokens=True)[0])
    print(fast.report)"""

ADVICE = {
    "speech.MergeAudioTokens": Advice(
        "Long audio with still stretches, and decoders that are large beside their encoder.",
        "Words change. On the small recogniser merging costs more time than it saves.",
    ),
    "speech.SuffixDraft": Advice(
        "Long recordings in which phrases come back, and models that fall into loops.",
        "Nothing in quality; a little time where nothing repeats, as in the recording below.",
    ),
}
