"""The command line of image models: draw a prompt."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmaccel.cli.command import Command, Prepared
from mmaccel.cli.model_arguments import add_methods, opened
from mmaccel.cli.run import SIDE_BY_SIDE, side_by_side, tell_written, told
from mmaccel.files.output import replacing

from .arguments import add_sampling, settings_of
from .batching import ImageBatching


class ImageCommand(Command):
    help = "draw a prompt"
    measured = "drawing a prompt"
    examples = (
        'mmaccel run image "red heart" -o heart.png --compare',
        'mmaccel run image "small pizza on green" -o pizza.png --method image.ZipAR:window=2',
        'mmaccel run image "small pizza on green" -o pizza.png --model tiny-amused --method HaltonOrder:steps=6',
        'mmaccel run image "a fox in snow" -o fox.png --model deepseek-community/Janus-Pro-1B --preset fast',
    )
    preset = "exact"
    floor = "at most this many nats of surprise"
    seeded = True
    batching = ImageBatching()

    def add_run(self, parser: Any) -> None:
        parser.add_argument("prompt")
        parser.add_argument("-o", "--output", type=Path, required=True, help="picture to write (.png, .jpg or .webp)")
        add_methods(parser, self.preset)
        parser.add_argument("--compare", action="store_true", help=SIDE_BY_SIDE.format("heart.compare.png"))
        add_sampling(parser)

    def run(self, arguments: argparse.Namespace) -> None:
        """Draw a prompt, and write the picture; with ``--compare`` also both pictures side by side."""
        from mmaccel.files.pictures import check_format

        check_format(arguments.output)
        both = side_by_side(arguments)
        from mmaccel.session import accelerate

        from . import generation, pictures
        from .comparing import verdict

        settings = settings_of(arguments)
        chosen, preset = self.methods(arguments)
        drawing = opened(arguments)
        generation.check_prompts(drawing, [arguments.prompt])
        runs = []
        with accelerate(drawing.target, *chosen, preset=preset) as session:
            if arguments.compare:
                drawing.paint(session, [arguments.prompt], settings, "warm up")  # a first run also measures the model
                with session.baseline() as plain:
                    painted = drawing.paint(plain, [arguments.prompt], settings, "plain")
                session.report.baseline_seconds = painted.token_seconds
                runs.append(("plain", painted))
            label = ", ".join(session.report.methods)
            runs.append((label, drawing.paint(session, [arguments.prompt], settings, "fast")))
            report = session.report
        with replacing(arguments.output) as temporary:
            pictures.save(runs[-1][1], temporary)
        if both:
            with replacing(both) as temporary:
                pictures.save_side_by_side(runs, temporary)
        print(told(report))
        tell_written(arguments, both)
        if arguments.compare and report.exact:
            plain_tokens, tokens = (painted.tokens for _, painted in runs)
            print(verdict(plain_tokens, tokens, session.plan))

    def add_call(self, parser: Any) -> None:
        parser.add_argument("prompt")

    def methods(self, arguments: argparse.Namespace) -> tuple[list[Any], str | None]:
        """As elsewhere; by default the preset of masked pictures, where the model draws such."""
        from .pipeline_painter import PRESET, draws_codes, index_of

        if draws_codes(index_of(arguments.model)):
            arguments.default = PRESET
        return super().methods(arguments)

    def prepare(self, arguments: argparse.Namespace) -> Prepared:
        from . import generation

        settings = generation.ImageSettings(guidance=arguments.guidance)
        drawing = opened(arguments)
        generation.check_prompts(drawing, [arguments.prompt])
        return drawing.target, drawing.inputs([arguments.prompt], settings)
