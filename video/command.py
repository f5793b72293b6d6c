"""The command line of diffusion pipelines: make a video from a prompt."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmaccel.cli.command import Command, Prepared
from mmaccel.cli.model_arguments import add_methods, chosen_methods, opened
from mmaccel.cli.run import SIDE_BY_SIDE, check_apart, check_picture, side_by_side, tell_written, told
from mmaccel.errors import PromptError
from mmaccel.files.output import replacing
from mmaccel.progress import looks

from .arguments import add_clip, add_film, settings_of
from .batching import VideoBatching

if TYPE_CHECKING:
    from mmaccel.session import Session

    from .generation import Filmed, VideoSettings


class VideoCommand(Command):
    help = "make a video from a prompt"
    measured = "making a video from a prompt"
    examples = (
        'mmaccel run video "rocket moves up, blue background" -o clip.mp4 --compare --trace trace.png',
        'mmaccel run video "pizza stays" -o pizza.gif --method video.EasyCache:threshold=0.1 --steps 20',
    )
    floor = "at least this many dB PSNR"
    seeded = True
    batching = VideoBatching()

    def add_run(self, parser: Any) -> None:
        parser.add_argument("prompt")
        parser.add_argument(
            "-o", "--output", type=Path, required=True, help="clip to write (.mp4, .gif, .webp or .png)"
        )
        add_methods(parser, self.preset)
        parser.add_argument("--compare", action="store_true", help=SIDE_BY_SIDE.format("clip.compare.mp4"))
        parser.add_argument("--trace", type=Path, help="also draw a picture of what was computed in which step")
        add_film(parser)

    def run(self, arguments: argparse.Namespace) -> None:
        """Generate a clip from a prompt, and write it; with ``--compare`` also both clips side by side."""
        from mmaccel.files import clips
        from mmaccel.session import accelerate

        from . import quality
        from .families.rates import rate_of
        from .trace import check_traced, trace_of

        clips.check_format(arguments.output, arguments.rate)
        check_picture(arguments.trace, "--trace")
        check_apart(arguments, "output", "trace")
        both = side_by_side(arguments)
        settings = settings_of(arguments, "seed")
        chosen, preset = chosen_methods(arguments)
        pipe, _ = self.open(arguments)
        rate = arguments.rate or rate_of(pipe)
        with accelerate(pipe, *chosen, preset=preset) as session:
            if arguments.trace:
                check_traced(session, "--trace")
            runs = _filmed(pipe, session, arguments, settings)
            report, frames = session.report, [run.frames for run in runs.values()]
            with replacing(arguments.output) as temporary:
                clips.save(frames[-1], temporary, rate)
            if arguments.trace:
                with replacing(arguments.trace) as drawing:
                    trace_of(session).save(drawing)
        if both:
            labels = [f"{label}: {run.seconds:.2f} s" for label, run in runs.items()]
            with replacing(both) as temporary:
                clips.save(clips.side_by_side(frames, labels), temporary, rate)
        print(told(report))
        if both:
            kind = runs["plain"].kind
            print(f"  quality     {quality.distance(*frames)} to the plain {kind}, measured")
        tell_written(arguments, both)
        if arguments.trace:
            print(f"wrote {arguments.trace}")

    def open(self, arguments: argparse.Namespace) -> tuple[Any, Any]:
        from . import generation

        generation.check_kind(arguments.model)
        pipe = opened(arguments)
        generation.check_arguments(pipe)
        return pipe, pipe

    def add_call(self, parser: Any) -> None:
        parser.add_argument("prompt")
        add_clip(parser)

    def prepare(self, arguments: argparse.Namespace) -> Prepared:
        from . import generation

        if not arguments.prompt.strip():
            raise PromptError("the prompt is empty: describe the clip, such as 'rocket moves up'")
        settings = settings_of(arguments)
        pipe, _ = self.open(arguments)
        generation.check_settings(pipe, settings)
        pipe.set_progress_bar_config(disable=True)
        return pipe, {"prompt": arguments.prompt, "output_type": "pil", **settings.arguments()}


def _filmed(pipe: Any, session: Session, arguments: argparse.Namespace, settings: VideoSettings) -> dict[str, Filmed]:
    """The runs by their labels: the accelerated one, and before it the plain one with ``--compare``.

    A method that measures in its first run would save nothing in a process of one run.
    """
    from . import generation

    def film(label: str, target: Any, settings: VideoSettings) -> Filmed:
        pipe.set_progress_bar_config(desc=label, unit="steps", **looks())
        return generation.film(target, arguments.prompt, settings)

    runs = {}
    if any(getattr(method, "measures_first", False) for method in session.plan.methods):
        film("measure", session, settings)
    if arguments.compare:
        with session.baseline() as plain:
            film("warm up", plain, generation.briefly(settings, pipe))
            runs["plain"] = film("plain", plain, settings)
        session.report.baseline_seconds = runs["plain"].seconds
    runs[", ".join(session.report.methods)] = film("fast", session, settings)
    return runs
