"""Many pictures: `mmaccel batch image`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmaccel.batch.batching import Batching
from mmaccel.files.endings import PICTURES

from .arguments import add_sampling, settings_of


class ImageBatching(Batching):
    field = "prompt"
    writes = PICTURES
    help = "draw prompts"

    def add_item(self, parser: Any) -> None:
        add_sampling(parser)

    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        from . import generation, pictures

        prompts = [arguments.prompt]
        generation.check_prompts(opened, prompts)
        pictures.save(opened.paint(target, prompts, settings_of(arguments)), path)
