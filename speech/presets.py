"""What `accelerate(model, preset=...)` stands for on speech recognisers."""

from __future__ import annotations

from mmaccel.presets import Preset

from .suffix_draft import SuffixDraft

MEASURED = {"model": "moonshine-tiny"}

_FAMILY = {
    "exact": Preset(
        (SuffixDraft(),),
        "speech",
        MEASURED,
        "pays where phrases come back; for words while they are spoken use speech.StreamingRecognizer",
    )
}
_NONE = "nothing lossy was measured to be faster than 'exact'"
PRESETS: dict[str, dict[str, Preset]] = dict.fromkeys(("moonshine", "moonshine_streaming", "whisper"), _FAMILY)
ABSENT: dict[str, dict[str, str]] = dict.fromkeys(PRESETS, {"balanced": _NONE, "fast": _NONE})
