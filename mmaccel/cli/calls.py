"""The call that `mmaccel compare` and `mmaccel tune` measure, by kind: its arguments, and the call they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PromptError, SettingError
from .arguments import RUNS, number, whole
from .model_arguments import add_model, device_of, dtype_of, painter
from .run import clip_of
from .run_parsers import add_answer, add_clip

Prepared = tuple[Any, dict[str, Any]]  # a target, and the inputs of its call


@dataclass(frozen=True)
class Call:
    """A kind of call.

    Attributes
    ----------
    help
        What it does, in words.
    model
        The shipped model that it runs on if none is named.
    add
        Adds its arguments to a parser.
    prepare
        From the parsed arguments to the target and the inputs of its call.
    seeded
        Whether it draws, so that seeds make it differ.
    """

    help: str
    model: str
    add: Callable[[Any], None]
    prepare: Callable[[argparse.Namespace], Prepared]
    seeded: bool = False


def add_kinds(commands: Any, name: str, about: str, examples: str, seeds: int) -> Iterator[tuple[str, Any]]:
    """Add a command with one kind for each call, and yield each kind's name and parser.

    `seeds` is how many are run if nothing is said.
    """
    looks: dict[str, Any] = {"epilog": examples, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = commands.add_parser(name, help=about, **looks)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, call in CALLS.items():
        found = kinds.add_parser(kind, help=call.help, **looks)
        _add_call(found, call, seeds)
        add_model(found, call.model)
        yield kind, found


def _add_call(parser: Any, call: Call, seeds: int) -> None:
    call.add(parser)
    parser.set_defaults(prepare=call.prepare)
    if call.seeded:
        parser.add_argument(
            "--seeds", type=whole(1, RUNS), default=seeds, help=f"how many seeds, from 0 on (default {seeds})"
        )
        parser.add_argument("--guidance", type=number(), help="guidance scale (default: the model's own)")
    rounds = "runs of each seed (default: 3 runs in all, or one of each seed)"
    parser.add_argument("--rounds", type=whole(1, RUNS), help=rounds)
    parser.add_argument("--no-simple", action="store_true", help="leave out the simple alternative")


def measured_inputs(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The target, and all that `compare` and `tune` take beside methods.

    Raises
    ------
    MmaccelError
        If something is missing or does not fit, as far as possible before the model is loaded.
    """
    target, inputs = arguments.prepare(arguments)
    seeds = range(getattr(arguments, "seeds", 1))
    return target, {"seeds": seeds, "rounds": arguments.rounds, "simple": not arguments.no_simple, **inputs}


def _add_image(parser: Any) -> None:
    parser.add_argument("prompt")


def _image(arguments: argparse.Namespace) -> Prepared:
    from mmaccel.image import generation

    settings = generation.Settings(guidance=arguments.guidance)
    drawing = painter(arguments)
    generation.check_prompts(drawing, [arguments.prompt])
    return drawing.target, drawing.inputs([arguments.prompt], settings)


def _add_video(parser: Any) -> None:
    parser.add_argument("prompt")
    add_clip(parser)


def _video(arguments: argparse.Namespace) -> Prepared:
    from mmaccel.video import generation

    names = ("steps", "guidance", "frames", "height", "width")
    settings = generation.Settings(**{name: getattr(arguments, name) for name in names})
    if not arguments.prompt.strip():
        raise PromptError("the prompt is empty: say what to film, such as 'rocket moves up'")
    generation.check_memory(settings)
    pipe = generation.load(arguments.model, device_of(arguments), dtype_of(arguments))
    pipe.set_progress_bar_config(disable=True)
    return pipe, {"prompt": arguments.prompt, "output_type": "pil", **settings.arguments()}


def _add_vlm(parser: Any) -> None:
    parser.add_argument("video", type=Path, nargs="?", help="video file, such as .mp4")
    parser.add_argument("question", nargs="?")
    parser.add_argument("--example", action="store_true", help="a clip of moving emoji and its question, no file")
    add_answer(parser)


def _vlm(arguments: argparse.Namespace) -> Prepared:
    from mmaccel.vlm import answering

    frames, question = _clip(arguments)
    model, processor = answering.load(arguments.model, device_of(arguments), dtype_of(arguments))
    length = {"max_new_tokens": arguments.max_new_tokens, "do_sample": False}
    return model, {"frames": frames, "questions": [question], "processor": processor, **length}


def _clip(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Frames and a question: those of the file, or of a clip that the shipped model never saw."""
    from .. import zoo

    _check_example(arguments, [arguments.video, arguments.question], "clip.mp4 'what moves up?'")
    if arguments.example:
        asked = zoo.questions("tiny-onevision", 1)[0]
        return asked.frames, asked.question
    return clip_of(arguments).frames, arguments.question


def _add_speech(parser: Any) -> None:
    parser.add_argument("audio", type=Path, nargs="*", help="audio or video files")
    parser.add_argument("--example", action="store_true", help="eight seconds of human speech, instead of files")
    parser.add_argument("--reference", action="append", metavar="TEXT", help="what is said; once for each file")


def _speech(arguments: argparse.Namespace) -> Prepared:
    from mmaccel.speech.families.weights import load

    audio, reference = _recordings(arguments)
    model, processor = load(arguments.model, device_of(arguments), dtype_of(arguments))
    return model, {"audio": audio, "reference": reference, "processor": processor}


def _recordings(arguments: argparse.Namespace) -> tuple[list[Any], list[str] | None]:
    """Recordings and what is said in them: those of the command line, or one of the extra `[speech]`."""
    _check_example(arguments, arguments.audio, "talk.wav")
    if not arguments.example:
        return arguments.audio, arguments.reference
    from mmaccel.speech.bench.recordings import example

    found = example()
    return [found.samples], [found.text]


def _check_example(arguments: argparse.Namespace, given: list[Any], such_as: str) -> None:
    """Raise unless either everything is given, or an example is asked for and nothing is."""
    if arguments.example and any(given):
        raise SettingError("--example stands instead of a file of your own: leave one of the two out")
    if not arguments.example and not (given and all(given)):
        raise SettingError(f"nothing to measure on: say {such_as}, or --example for one that is shipped")


CALLS = {
    "image": Call("drawing a prompt", "tiny-janus", _add_image, _image, seeded=True),
    "video": Call("filming a prompt", "tiny-wan", _add_video, _video, seeded=True),
    "vlm": Call("answering a question about a video", "tiny-onevision", _add_vlm, _vlm),
    "speech": Call("writing down what is said", "moonshine-tiny", _add_speech, _speech),
}
