"""The command line of vision-language models: ask about a video."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from mmaccel.cli.arguments import number
from mmaccel.cli.command import Command, Prepared, check_example
from mmaccel.cli.model_arguments import add_methods, chosen_methods, opened
from mmaccel.cli.run import check_apart, check_picture, told
from mmaccel.errors import SettingError
from mmaccel.files.output import replacing

from .arguments import add_answer, add_fps, frames_of
from .batching import VlmBatching


class VlmCommand(Command):
    help = "ask about a video"
    measured = "answering a question about a video"
    examples = (
        'mmaccel run video "rocket moves up, blue background" -o clip.mp4',
        'mmaccel run vlm clip.mp4 "what moves up?" --compare --picture kept.png',
        'mmaccel run vlm clip.mp4 "what moves up?" --watch --compare',
        'mmaccel run vlm talk.mp4 "who speaks?" --fps 2 --model llava-hf/llava-onevision-qwen2-0.5b-ov-hf',
    )
    floor = "the share of equal answers"
    batching = VlmBatching()

    def add_run(self, parser: Any) -> None:
        parser.add_argument("video", type=Path, help="video file, such as .mp4")
        parser.add_argument("question")
        add_methods(parser, self.preset)
        parser.add_argument("--compare", action="store_true", help="also answer plainly, and measure the speed-up")
        parser.add_argument("--picture", type=Path, help="also draw which patches were kept, over the frames")
        add_answer(parser)
        add_fps(parser)
        watch = "decode while the model reads, without frames that show nothing new (LLaVA-OneVision, LLaVA-NeXT-Video)"
        parser.add_argument("--watch", action="store_true", help=watch)
        levels = "levels of 255 by which some part of a frame must differ to be new (default 24); with --watch"
        parser.add_argument(
            "--still", type=number("from 0 to 255", lambda level: 0 <= level <= 255), metavar="LEVELS", help=levels
        )

    def run(self, arguments: argparse.Namespace) -> None:
        """Answer a question about a video file."""
        check_picture(arguments.picture, "--picture")
        check_apart(arguments, "picture")
        if arguments.watch:
            watched(arguments)
        elif arguments.still is not None:
            raise SettingError("--still says which frames --watch leaves out: add --watch")
        else:
            self._answer(arguments)

    @staticmethod
    def _answer(arguments: argparse.Namespace) -> None:
        from mmaccel.session import accelerate

        from .answering import ask

        chosen, preset = chosen_methods(arguments)
        video = frames_of(arguments)
        model, processor = opened(arguments)
        asked = {"questions": [arguments.question], "max_new_tokens": arguments.max_new_tokens}
        with accelerate(model, *chosen, preset=preset) as session:
            plain = None
            if arguments.compare:
                with session.baseline() as target:
                    ask(target, processor, video, **{**asked, "max_new_tokens": 1})  # a process's first call is slow
                    plain, seconds = ask(target, processor, video, **asked)
                session.report.baseline_seconds = seconds
            answers, _ = ask(session, processor, video, **asked)
            try:
                if plain is not None:
                    print(f"plain: {plain[0]}")
                print(answers[0] if plain is None else f"fast:  {answers[0]}")
                print(told(session.report), flush=True)
            finally:  # last, since not every method leaves out patches, and also where the reader of the answer is gone
                if arguments.picture:
                    from .pruning.kept import kept

                    with replacing(arguments.picture) as temporary:
                        kept(session)[0].save(video.frames, temporary)
            if arguments.picture:
                print(f"wrote {arguments.picture}")

    def add_call(self, parser: Any) -> None:
        parser.add_argument("video", type=Path, nargs="?", help="video file, such as .mp4")
        parser.add_argument("question", nargs="?")
        parser.add_argument(
            "--example",
            action="store_true",
            help="use a shipped clip of moving emoji with its question, instead of a file",
        )
        add_answer(parser)

    def prepare(self, arguments: argparse.Namespace) -> Prepared:
        check_example(arguments, [arguments.video, arguments.question], "clip.mp4 'what moves up?'")
        frames, question = _example() if arguments.example else (frames_of(arguments), arguments.question)
        model, processor = opened(arguments)
        length = {"max_new_tokens": arguments.max_new_tokens, "do_sample": False}
        return model, {"frames": frames, "questions": [question], "processor": processor, **length}


def watched(arguments: argparse.Namespace) -> None:
    """Answer a question about a video file while it is decoded; with --compare plainly as well."""
    from .answering import ask
    from .stream.streaming_compression import StreamingCompression
    from .stream.video_stream import VideoStream
    from .stream.watching import watch

    if arguments.preset:
        raise SettingError(f"--preset {arguments.preset}: a stream has none: leave out --watch, or --preset")
    method = _of_stream(chosen_methods(arguments)[0], StreamingCompression)
    if arguments.picture:
        raise SettingError("--picture: a stream does not keep its frames: leave out --watch")
    model, processor = opened(arguments)
    stream = VideoStream(model, processor, method)  # refuses what has no streams, before anything is asked
    length, plain = {"max_new_tokens": arguments.max_new_tokens}, None
    if arguments.compare:
        ask(model, processor, frames_of(arguments), [arguments.question], max_new_tokens=1)  # a first call is slow
    began = time.perf_counter()
    if arguments.compare:
        (plain,), _ = ask(model, processor, frames_of(arguments), [arguments.question], **length)
        plain_seconds, began = time.perf_counter() - began, time.perf_counter()
    with stream:
        still = {} if arguments.still is None else {"still": arguments.still}
        seen = watch(stream, arguments.video, frames=arguments.frames, fps=arguments.fps, **still)
        answer, tokens = stream.ask(arguments.question, **length), stream.stats.tokens
    seconds = time.perf_counter() - began
    if plain is not None:
        print(f"plain: {plain}")
    print(answer if plain is None else f"fast:  {answer}")
    print(f"{seen}, {tokens} of {seen.decoded * stream.stats.plain_tokens // seen.frames} visual tokens")
    compared = "" if plain is None else f", plain {plain_seconds:.2f} s: {plain_seconds / seconds:.2f}x"
    print(f"{seconds:.2f} s from the file to the answer{compared} (lossy)")


def _of_stream(chosen: list[Any], kind: type[Any]) -> Any:
    """The method of a stream among those that were named, in a plan or by themselves; None for its default."""
    methods = [method for one in chosen for method in getattr(one, "methods", [one])]
    if len(methods) > 1 or not all(isinstance(method, kind) for method in methods):
        told = " and ".join(map(str, methods))
        raise SettingError(f"--watch takes --method vlm.{kind.__name__}[:KEY=VALUE,...] or none, not {told}")
    return methods[0] if methods else None


def _example() -> tuple[Any, str]:
    """A clip that the shipped model never saw, with a question about it."""
    from mmaccel import zoo

    asked = zoo.questions("tiny-onevision", 1)[0]
    return asked.frames, asked.question
