"""Many clips: `mmaccel batch video`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmaccel.batch.batching import Batching
from mmaccel.files.endings import CLIPS

from .arguments import add_film, settings_of


class VideoBatching(Batching):
    field = "prompt"
    writes = CLIPS
    help = "make videos from prompts"

    def add_item(self, parser: Any) -> None:
        add_film(parser)

    def check(self, arguments: argparse.Namespace, path: Path) -> None:
        from mmaccel.files import clips

        clips.check_format(path, arguments.rate)
        settings_of(arguments, "seed")

    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        from mmaccel.files import clips

        from . import generation
        from .families.rates import rate_of

        opened.set_progress_bar_config(disable=True)
        frames = generation.film(target, arguments.prompt, settings_of(arguments, "seed")).frames
        clips.save(frames, path, arguments.rate or rate_of(opened))
