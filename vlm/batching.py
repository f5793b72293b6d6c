"""Many questions about videos, and many pages: `mmaccel batch vlm` and `mmaccel batch document`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mmaccel.batch.batching import Batching
from mmaccel.errors import PromptError
from mmaccel.files.endings import READ_PICTURES

from .arguments import add_answer, add_fps, add_reading, frames_of, given_regions


class VlmBatching(Batching):
    field = "video"
    reads = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".gif")
    writes = (".txt",)
    instead: ClassVar[Mapping[str, str]] = {"frames": "fps"}
    help = "ask about videos"

    def add_item(self, parser: Any) -> None:
        parser.add_argument("--question", help="what is asked about each video that has no question of its own")
        add_answer(parser)
        add_fps(parser)

    def check(self, arguments: argparse.Namespace, path: Path) -> None:
        if not (arguments.question or "").strip():
            raise PromptError("there is no question: say --question 'what moves up?', or give each item its own")

    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        from .answering import ask

        (answer,), _ = ask(target, opened[1], frames_of(arguments), [arguments.question], arguments.max_new_tokens)
        path.write_text(f"{answer}\n", encoding="utf-8")


class DocumentBatching(Batching):
    field = "page"
    reads = READ_PICTURES
    files = ("regions",)
    writes = (".md",)
    help = "read pages as Markdown"

    def add_item(self, parser: Any) -> None:
        regions = "what a light pipeline found on the page, as of `mmaccel run document`"
        parser.add_argument("--regions", type=Path, help=regions)
        add_reading(parser)

    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        from mmaccel.files.pictures import read_picture
        from mmaccel.session import Session

        from .reading import prompt_of, read, read_regions

        model_and_processor, page = opened, read_picture(arguments.page)
        processor = model_and_processor[1]
        regions = read_regions(arguments.regions) if arguments.regions else []
        given = given_regions(target, regions, arguments.regions) if isinstance(target, Session) else {}
        prompt = prompt_of(processor, arguments.prompt)
        text, _ = read(target, processor, page, prompt, arguments.max_new_tokens, **given)
        path.write_text(f"{text}\n", encoding="utf-8")
