"""Many recordings: `mmaccel batch speech`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmaccel.batch.batching import Batching

SOUNDS = (".wav", ".mp3", ".flac", ".m4a", ".ogg", ".opus", ".aac", ".wma", ".aiff", ".aif", ".caf", ".amr")


class SpeechBatching(Batching):
    field = "audio"
    reads = (*SOUNDS, ".mp4", ".mkv", ".webm", ".mov", ".3gp")
    writes = (".srt", ".vtt", ".json")
    help = "write down what is said in recordings"

    def add_item(self, parser: Any) -> None:
        """Recordings differ in nothing but themselves."""

    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        from .audio.audio import read_audio
        from .stream.transcribe import transcribe_samples

        transcribe_samples(read_audio(arguments.audio), target, progress=False).save(path)
