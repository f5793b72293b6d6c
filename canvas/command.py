"""The command line of canvases: list what a picture shows."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from mmaccel.cli.command import Command, Prepared, check_example
from mmaccel.cli.model_arguments import add_methods, chosen_methods
from mmaccel.cli.run import check_apart, check_picture, told
from mmaccel.errors import UnsupportedTargetError
from mmaccel.files.output import replacing

from .arguments import QUESTION, add_canvas
from .batching import CanvasBatching

WARM = 8  # tokens of a run that is discarded


class CanvasCommand(Command):
    help = "fill a canvas of text: list what a picture shows (tiny-canvas)"
    measured = "listing what a picture shows"
    examples = (
        "mmaccel run canvas --example --compare",
        "mmaccel run canvas picture.png --method FactorCommit:factor=1 --method PrefixCache --trace commits.png",
    )
    floor = "the share of equal texts"
    batching = CanvasBatching()

    def add_run(self, parser: Any) -> None:
        self.add_call(parser)
        add_methods(parser, self.preset)
        parser.add_argument("--compare", action="store_true", help="also run plainly, and measure the speed-up")
        parser.add_argument("--trace", type=Path, help="also draw which step committed each token")

    def run(self, arguments: argparse.Namespace) -> None:
        """List what a picture shows."""
        from mmaccel.session import accelerate

        check_picture(arguments.trace, "--trace")
        check_apart(arguments, "trace")
        chosen, preset = chosen_methods(arguments)
        pipe, inputs = self.prepare(arguments)
        with accelerate(pipe, *chosen, preset=preset) as session:
            if arguments.compare:
                with session.baseline() as plain:
                    plain(**{**inputs, "gen_length": WARM})  # the first call of a process is slow
                    began = time.perf_counter()
                    print(f"plain: {plain(**inputs).texts[0]}")
                session.report.baseline_seconds = time.perf_counter() - began
            commits = _commits(arguments.trace)
            text = session(**inputs, callback_on_step_end=commits).texts[0]
            if commits is not None:  # before what is printed, whose reader may be gone
                with replacing(arguments.trace) as drawing:
                    commits.save(drawing, pipe.tokenizer)
            print(f"{'fast:  ' if arguments.compare else ''}{text}")
            print(told(session.report), flush=True)
            if commits is not None:
                print(f"wrote {arguments.trace}")

    def add_call(self, parser: Any) -> None:
        parser.add_argument("picture", type=Path, nargs="?", help="picture file, such as .png")
        parser.add_argument("question", nargs="?", default=QUESTION, help=f"default: {QUESTION}")
        parser.add_argument("--example", action="store_true", help="use a shipped picture of emoji instead of a file")
        add_canvas(parser)

    def open(self, arguments: argparse.Namespace) -> tuple[Any, Any]:
        found, pipe = super().open(arguments)
        if found[1] is None:
            raise UnsupportedTargetError(
                f"{arguments.model} draws pictures: `mmaccel run image PROMPT -o picture.png --model {arguments.model}`"
            )
        return found, pipe

    def prepare(self, arguments: argparse.Namespace) -> Prepared:
        check_example(arguments, [arguments.picture], "picture.png")
        from mmaccel.files.pictures import read_picture

        from .generation import example, inputs_of

        picture = example() if arguments.example else read_picture(arguments.picture)
        (pipe, processor), _ = self.open(arguments)
        inputs = inputs_of(processor, picture, arguments.question)
        return pipe, {**inputs, "gen_length": arguments.gen_length, "threshold": arguments.threshold}


def _commits(path: Path | None) -> Any:
    """What watches a run whose trace is wanted."""
    if path is None:
        return None
    from .commits import Commits

    return Commits()
