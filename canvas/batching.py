"""Many pictures whose things are listed: `mmaccel batch canvas`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmaccel.batch.batching import Batching
from mmaccel.files.endings import READ_PICTURES

from .arguments import QUESTION, add_canvas


class CanvasBatching(Batching):
    field = "picture"
    reads = READ_PICTURES
    writes = (".txt",)
    help = "list what pictures show (tiny-canvas)"

    def add_item(self, parser: Any) -> None:
        parser.add_argument("--question", default=QUESTION, help=f"default: {QUESTION}")
        add_canvas(parser)

    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        from mmaccel.files.pictures import read_picture

        from .generation import inputs_of

        inputs = inputs_of(opened[1], read_picture(arguments.picture), arguments.question)
        made = target(**inputs, gen_length=arguments.gen_length, threshold=arguments.threshold)
        path.write_text(f"{made.texts[0]}\n", encoding="utf-8")
