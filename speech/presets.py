"""What `accelerate(model, preset=...)` stands for on speech recognisers: nothing yet that was measured to be faster."""

from __future__ import annotations

_EXACT = (
    "speech.SuffixDraft() was measured to save no time where nothing repeats: name it where phrases come back, or take"
    " speech.StreamingRecognizer for words while they are spoken"
)
_LOSSY = "nothing lossy was measured to be faster"
_STREAMS = "no method works on these: speech.StreamingRecognizer hears them, and verifies drafts where that saves work"
_CHAT = (
    "speech.StreamingRecognizer hears these, and verifies drafts by itself: name vlm.FusedDraft() for answers to"
    " questions about sound"
)
_HEARD = ("ctc", "transducer", "streaming_transducer", "codec_frames", "mel_frames")
ABSENT: dict[str, dict[str, str]] = {
    **dict.fromkeys(
        ("moonshine", "moonshine_streaming", "whisper"), {"exact": _EXACT, "balanced": _LOSSY, "fast": _LOSSY}
    ),
    **dict.fromkeys(_HEARD, dict.fromkeys(("exact", "balanced", "fast"), _STREAMS)),
    "speech_chat": {"exact": _CHAT, "balanced": _LOSSY, "fast": _LOSSY},
}
