"""What `mmaccel compare` takes, and what it does with that."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .comparison import Comparison, check_format
from .errors import PromptError, SettingError
from .output import replacing
from .run_commands import chosen_methods, dtype_of, painter

Add = Callable[..., None]
SEEDS = 3
SPEECH_METHOD = "speech.SuffixDraft"  # where none is asked for
SPEECH_EXAMPLES = """examples:
  mmaccel compare speech talk.wav --method speech.SuffixDraft -o talk.html
  mmaccel compare speech one.wav two.mp3 --method speech.MergeAudioTokens --reference "what one says" \\
      --reference "what two says" -o both.html
"""


def add_parser(commands: Any, add_model: Add, add_methods: Add, run: Callable[[argparse.Namespace], None]) -> None:
    """Add `compare` with its kinds to the command line."""
    parser = commands.add_parser("compare", help="methods beside the plain run and the simple alternative")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    image = kinds.add_parser("image", help="drawing a prompt")
    video = kinds.add_parser("video", help="filming a prompt")
    vlm = kinds.add_parser("vlm", help="answering a question about a video")
    raw = argparse.RawDescriptionHelpFormatter
    speech = kinds.add_parser("speech", help="writing down what is said", epilog=SPEECH_EXAMPLES, formatter_class=raw)
    for kind, model, preset in ((image, "tiny-janus", "exact"), (video, "tiny-wan", "balanced")):
        kind.add_argument("prompt")
        _add_common(kind, add_model, add_methods, run, model, preset)
        kind.add_argument("--seeds", type=int, default=SEEDS, help=f"how many seeds, from 0 on (default {SEEDS})")
        kind.add_argument("--guidance", type=float, help="guidance scale (default: the model's own)")
    for name in ("steps", "frames", "height", "width"):
        video.add_argument(f"--{name}", type=int, help="default: the pipeline's own")
    vlm.add_argument("video", type=Path, nargs="?", help="video file, such as .mp4")
    vlm.add_argument("question", nargs="?")
    vlm.add_argument("--example", action="store_true", help="a clip of moving emoji and its question, no file")
    _add_common(vlm, add_model, add_methods, run, "tiny-onevision", "balanced")
    vlm.add_argument("--frames", type=int, default=32, help="frames to look at (default 32)")
    vlm.add_argument("--max-new-tokens", type=int, default=32, help="length of the answer (default 32)")
    speech.add_argument("audio", type=Path, nargs="*", help="audio or video files")
    speech.add_argument("--example", action="store_true", help="ten seconds of human speech, instead of files")
    _add_common(speech, add_model, add_methods, run, "moonshine-tiny", SPEECH_METHOD)
    speech.add_argument("--reference", action="append", metavar="TEXT", help="what is said; once for each file")


def _add_common(
    kind: Any, add_model: Add, add_methods: Add, run: Callable[[argparse.Namespace], None], model: str, preset: str
) -> None:
    add_model(kind, model)
    add_methods(kind, preset)
    kind.add_argument("-o", "--output", type=Path, help="page (.html), picture (.png) or rows (.json) to write")
    kind.add_argument("--rounds", type=int, help="runs of each seed (default: 3 runs in all, or one of each seed)")
    kind.add_argument("--no-simple", action="store_true", help="leave out the simple alternative")
    kind.set_defaults(run=run)


def run_compare(arguments: argparse.Namespace) -> Comparison:
    """Compare each of the methods that are given, and write what was found."""
    prepare = {"image": _image, "video": _video, "vlm": _vlm, "speech": _speech}[arguments.kind]
    if arguments.output is None:
        return _compare(arguments, *prepare(arguments))
    check_format(arguments.output)
    with replacing(arguments.output) as temporary:  # fails now, and not after minutes of work
        found = _compare(arguments, *prepare(arguments))
        found.save(temporary)
    return found


def _compare(arguments: argparse.Namespace, target: Any, inputs: dict[str, Any]) -> Comparison:
    from .compare import compare

    chosen, preset = chosen_methods(arguments)
    seeds = getattr(arguments, "seeds", 1)
    if seeds < 1:
        raise SettingError(f"--seeds {seeds}: it must be at least 1")
    more = {"rounds": arguments.rounds, "simple": not arguments.no_simple}
    return compare(target, *chosen, preset=preset, seeds=range(seeds), **more, **inputs)


def _image(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from .image import generation

    settings = generation.Settings(guidance=arguments.guidance)
    drawing = painter(arguments)
    generation.check_prompts(drawing, [arguments.prompt])
    return drawing.target, drawing.inputs([arguments.prompt], settings)


def _video(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from .video import generation

    names = ("steps", "guidance", "frames", "height", "width")
    settings = generation.Settings(**{name: getattr(arguments, name) for name in names})
    if not arguments.prompt.strip():
        raise PromptError("the prompt is empty: say what to film, such as 'rocket moves up'")
    pipe = generation.load(arguments.model, arguments.device, dtype_of(arguments))
    pipe.set_progress_bar_config(disable=True)
    return pipe, {"prompt": arguments.prompt, "output_type": "pil", **settings.arguments()}


def _vlm(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from .vlm import answering

    frames, question = _clip(arguments)
    model, processor = answering.load(arguments.model, arguments.device, dtype_of(arguments))
    length = {"max_new_tokens": arguments.max_new_tokens, "do_sample": False}
    return model, {"frames": frames, "questions": [question], "processor": processor, **length}


def _clip(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Frames and a question: those of the file, or of a clip that the shipped model never saw."""
    from . import vlm, zoo

    _check_example(arguments, [arguments.video, arguments.question], "clip.mp4 'what moves up?'")
    if arguments.example:
        asked = zoo.questions("tiny-onevision", 1)[0]
        return asked.frames, asked.question
    return vlm.read_video(arguments.video, frames=arguments.frames).frames, arguments.question


def _check_example(arguments: argparse.Namespace, given: list[Any], such_as: str) -> None:
    """Raise unless either everything is given, or an example is asked for and nothing is."""
    if arguments.example and any(given):
        raise SettingError("--example stands instead of a file of your own: leave one of the two out")
    if not arguments.example and not (given and all(given)):
        raise SettingError(f"nothing to compare on: say {such_as}, or --example for one that is shipped")


def _speech(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from .speech.weights import load

    if not (arguments.method or arguments.plan or arguments.preset):
        arguments.method = [SPEECH_METHOD]
    audio, reference = _recordings(arguments)
    model, processor = load(arguments.model, arguments.device, dtype_of(arguments))
    return model, {"audio": audio, "reference": reference, "processor": processor}


def _recordings(arguments: argparse.Namespace) -> tuple[list[Any], list[str] | None]:
    """Recordings and what is said in them: those of the command line, or one of the extra `[speech]`."""
    _check_example(arguments, arguments.audio, "talk.wav")
    if not arguments.example:
        return arguments.audio, arguments.reference
    from .speech.benchmark import TEXTS, load_recordings

    found = load_recordings(list(TEXTS)[:1])
    return [recording.samples for recording in found], [recording.text for recording in found]
