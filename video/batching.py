"""Many clips: `mmaccel batch video`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmaccel.batch.batching import Batching
from mmaccel.cli.arguments import number, seed
from mmaccel.files.endings import CLIPS

from .command import add_clip, settings_of


class VideoBatching(Batching):
    field = "prompt"
    writes = CLIPS
    help = "make videos from prompts"

    def add_item(self, parser: Any) -> None:
        parser.add_argument("--seed", type=seed, default=0, help="seed of the random numbers (default 0)")
        add_clip(parser)
        parser.add_argument("--guidance", type=number(), help="guidance scale (default: the pipeline's own)")

    def check(self, arguments: argparse.Namespace, path: Path) -> None:
        from mmaccel.files import clips

        clips.check_format(path)
        settings_of(arguments, "seed")

    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        from mmaccel.files import clips

        from . import generation

        opened.set_progress_bar_config(disable=True)
        clips.save(generation.film(target, arguments.prompt, settings_of(arguments, "seed")).frames, path)
