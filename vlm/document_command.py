"""`mmaccel run document`: read a page as Markdown, with the help of a light pipeline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, ClassVar

from mmaccel.cli.arguments import number
from mmaccel.cli.command import Command, Prepared, check_example
from mmaccel.cli.model_arguments import add_methods, chosen_methods, device_of, dtype_of
from mmaccel.cli.run import check_apart, check_picture, told
from mmaccel.errors import SettingError

from .arguments import READER, add_reading, given_regions
from .batching import DocumentBatching

WRONG = 0.05
SHARE = number("between 0 and 1", lambda value: 0 <= value <= 1)


class DocumentCommand(Command):
    help = "read a page as Markdown"
    measured = "reading a page"
    examples = (
        "mmaccel run document --example -o page.md --compare --picture page.png",
        "mmaccel run document page.png --regions page.json --method vlm.DocumentDraft:regions=true",
        "mmaccel run document scan.png --model lightonai/LightOnOCR-1B-1025 --regions scan.json -o scan.md",
    )
    preset: ClassVar[str] = "vlm.DocumentDraft"
    model: ClassVar[str] = READER
    batching = DocumentBatching()

    def add_run(self, parser: Any) -> None:
        self.add_call(parser)
        add_methods(parser, self.preset)
        parser.add_argument("--compare", action="store_true", help="also read plainly, and measure the speed-up")
        parser.add_argument("-o", "--output", type=Path, help="Markdown file (default: it is printed)")
        parser.add_argument("--picture", type=Path, help="also write the page as a picture, such as page.png")

    def add_call(self, parser: Any) -> None:
        parser.add_argument("page", type=Path, nargs="?", help="picture file, such as .png")
        parser.add_argument("--example", action="store_true", help="read a page that comes with mmaccel")
        parser.add_argument(
            "--regions", type=Path, help='what a light pipeline found: JSON, [{"box": [x, y, x, y], "text": ...}, ...]'
        )
        parser.add_argument(
            "--wrong", type=SHARE, help=f"share of wrong words in the regions of --example (default {WRONG})"
        )
        add_reading(parser)

    def open(self, arguments: argparse.Namespace) -> tuple[Any, Any]:
        """The reader with its processor, and the reader."""
        from .reading import load

        model, processor = load(arguments.model, device_of(arguments), dtype_of(arguments))
        return (model, processor), model

    def prepare(self, arguments: argparse.Namespace) -> Prepared:
        """The reader, and the arguments of :func:`mmaccel.vlm.reading.read`."""
        check_example(arguments, [arguments.page], "page.png")
        from mmaccel.files.pictures import read_picture

        from .reading import example, prompt_of, read_regions

        if arguments.example:
            if arguments.regions:
                raise SettingError("--example has regions of its own: leave --regions out")
            page, regions = example(WRONG if arguments.wrong is None else arguments.wrong)
        elif arguments.wrong is not None:
            raise SettingError("--wrong is for the regions of --example: leave it out")
        else:
            page = read_picture(arguments.page)
            regions = read_regions(arguments.regions) if arguments.regions else []
        (model, processor), _ = self.open(arguments)
        prompt = prompt_of(processor, arguments.prompt)
        read = {"page": page, "prompt": prompt, "max_new_tokens": arguments.max_new_tokens}
        return model, {"processor": processor, "regions": regions, **read}

    def run(self, arguments: argparse.Namespace) -> None:
        """Read a page, and write its Markdown."""
        from mmaccel.files.output import check_writable, replacing
        from mmaccel.session import accelerate

        from .reading import read

        check_writable(arguments.output)
        check_picture(arguments.picture, "--picture")
        check_apart(arguments, "output", "picture")
        chosen, preset = chosen_methods(arguments)
        model, call = self.prepare(arguments)
        regions = call.pop("regions")
        with accelerate(model, *chosen, preset=preset) as session:
            given, plain = given_regions(session, regions, arguments.regions), None
            if arguments.compare:
                with session.baseline() as target:
                    read(target, **{**call, "max_new_tokens": 1})  # a process's first call is slow
                    plain, seconds = read(target, **call)
                session.report.baseline_seconds = seconds
            text, _ = read(session, **call, **given)
            report = told(session.report)
        if arguments.output:  # files before what is printed, whose reader may be gone
            with replacing(arguments.output) as temporary:
                temporary.write_text(text + "\n", encoding="utf-8")
        if arguments.picture:
            with replacing(arguments.picture) as temporary:
                call["page"].save(temporary)
        if not arguments.output:
            print(text, end="\n\n")
        if plain is not None:
            print("the plain text is the same" if plain == text else f"the plain text differs:\n{plain}\n")
        print(report)
        for path in filter(None, (arguments.output, arguments.picture)):
            print(f"wrote {path}")
