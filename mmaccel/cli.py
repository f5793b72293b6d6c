"""The command line: `mmaccel env | methods | presets | plan | run | compare | tune | bench | demo`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .bench_commands import add_parser as add_bench
from .compare_commands import add_parser, run_compare
from .demo_commands import add_parser as add_demo
from .errors import MmaccelError
from .output import replacing
from .run_commands import POLICIES, chosen_methods, run_image, run_speech, run_video, run_vlm, target_of
from .tune_commands import add_parser as add_tune
from .version import __version__, versions

EXAMPLES = """examples:
  mmaccel run image "red heart" -o heart.png --compare
  mmaccel run image "small pizza on green" -o pizza.png --method image.ZipAR:window=2
  mmaccel run video "rocket moves up, blue background" -o clip.mp4 --compare
  mmaccel run vlm clip.mp4 "what moves up?" --compare --picture kept.png
  mmaccel compare video "rocket moves up, blue background" --method video.EasyCache -o rocket.html
  mmaccel run speech talk.wav -o talk.srt
  mmaccel compare speech talk.wav --method speech.SuffixDraft -o talk.html
  mmaccel run speech --live talk.wav
  arecord -q -t raw -f S16_LE -r 16000 | mmaccel run speech -
  mmaccel plan --model tiny-janus --preset fast -o plan.json
  mmaccel tune video "rocket moves up" --method video.HeterogeneousSteps --target-speedup 1.8 -o plan.json
  mmaccel bench image --json > image.json
  mmaccel demo --port 7860
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0, 1 (a check that was asked for failed) or 2 (what was asked cannot be done).
    """
    arguments = build_parser().parse_args(argv)
    try:
        _quiet_libraries()
        code: int | None = arguments.run(arguments)
        sys.stdout.flush()
    except (MmaccelError, OSError) as error:
        print(f"mmaccel: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mmaccel: stopped", file=sys.stderr)
        return 130
    return code or 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmaccel",
        description="Makes existing multimodal models faster, without retraining or forking them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    env = commands.add_parser("env", help="versions and devices, for bug reports")
    env.set_defaults(run=_env)

    methods = commands.add_parser("methods", help="list all methods and their settings")
    methods.add_argument("--modality", help="only those of one modality")
    methods.set_defaults(run=_methods)

    presets = commands.add_parser(
        "presets", help="list what exact, balanced and fast stand for, and what they measured"
    )
    presets.add_argument("--modality", help="only those of one modality")
    presets.set_defaults(run=_presets)

    plan = commands.add_parser("plan", help="resolve and check methods for a model, and save them")
    _add_model(plan)
    _add_methods(plan)
    plan.add_argument("-o", "--output", type=Path, help="write the plan as JSON")
    plan.set_defaults(run=_plan)

    run = commands.add_parser("run", help="generate with a model, accelerated")
    kinds = run.add_subparsers(dest="kind", required=True, metavar="KIND")
    image = kinds.add_parser(
        "image", help="draw a prompt", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    image.add_argument("prompt")
    image.add_argument("-o", "--output", type=Path, required=True, help="picture to write (.png, .jpg or .webp)")
    _add_model(image)
    _add_methods(image)
    image.add_argument("--compare", action="store_true", help="also run plainly, and put the two side by side")
    image.add_argument("--seed", type=int, default=0)
    image.add_argument("--count", type=int, default=1, help="pictures of the prompt")
    image.add_argument("--guidance", type=float, help="guidance scale (default: the model's own)")
    image.add_argument("--temperature", type=float)
    image.add_argument("--top-k", type=int)
    image.add_argument("--top-p", type=float)
    image.set_defaults(run=run_image)

    video = kinds.add_parser(
        "video", help="film a prompt", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    video.add_argument("prompt")
    video.add_argument("-o", "--output", type=Path, required=True, help="clip to write (.mp4, .gif, .webp or .png)")
    _add_model(video, "tiny-wan")
    _add_methods(video, "balanced")
    video.add_argument("--compare", action="store_true", help="also run plainly, and put the two side by side")
    video.add_argument("--trace", type=Path, help="also draw what was computed when, as a picture")
    video.add_argument("--seed", type=int, default=0)
    for name, meaning in (
        ("steps", "denoising steps"),
        ("frames", "frames"),
        ("height", "pixels"),
        ("width", "pixels"),
    ):
        video.add_argument(f"--{name}", type=int, help=f"{meaning} (default: the pipeline's own)")
    video.add_argument("--guidance", type=float, help="guidance scale (default: the pipeline's own)")
    video.set_defaults(run=run_video)

    question = kinds.add_parser(
        "vlm", help="ask about a video", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    question.add_argument("video", type=Path, help="video file, such as .mp4")
    question.add_argument("question")
    _add_model(question, "tiny-onevision")
    _add_methods(question, "balanced")
    question.add_argument("--compare", action="store_true", help="also answer plainly, and measure the speed-up")
    question.add_argument("--picture", type=Path, help="also draw which patches were kept, over the frames")
    question.add_argument("--frames", type=int, default=32, help="frames to look at (default 32)")
    question.add_argument("--fps", type=float, help="frames a second to look at, instead of --frames")
    question.add_argument("--max-new-tokens", type=int, default=32, help="length of the answer (default 32)")
    question.set_defaults(run=run_vlm)

    speech = kinds.add_parser(
        "speech",
        help="write down what is said",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    speech.add_argument("audio", help="audio or video file, or - for raw 16-bit samples on standard input")
    speech.add_argument("-o", "--output", type=Path, help="subtitles to write (.srt, .vtt or .json)")
    _add_model(speech, "moonshine-tiny")
    speech.add_argument("--live", action="store_true", help="print words as they become stable (- always does)")
    speech.add_argument("--rate", type=int, default=16_000, help="samples a second of - (default 16000)")
    speech.add_argument("--channels", type=int, default=1, help="channels of - (default 1)")
    speech.add_argument("--policy", choices=sorted(POLICIES), default="local-agreement", help="which words are stable")
    speech.add_argument("--update-interval", type=float, default=0.5, help="seconds between looks (default 0.5)")
    speech.add_argument("--endpoint", choices=["auto", "silero", "energy"], default="auto", help="what finds pauses")
    speech.add_argument("--silence", type=float, default=0.5, help="seconds of silence that end a segment")
    speech.add_argument("--longest", type=float, default=15.0, help="seconds after which a segment is cut")
    speech.add_argument(
        "--packed", action="store_true", help="hold weights twice, as oneDNN wants them: faster on a CPU in float32"
    )
    speech.set_defaults(run=run_speech)

    add_parser(commands, _add_model, _add_methods, _compare)

    add_tune(commands, _add_model)
    add_bench(commands)
    add_demo(commands)
    return parser


def _add_model(parser: argparse.ArgumentParser, default: str = "tiny-janus") -> None:
    parser.add_argument("--model", default=default, help=f"zoo name, hub id or folder (default {default})")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="default: as stored")


def _add_methods(parser: argparse.ArgumentParser, default: str = "exact") -> None:
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="a method with settings; `mmaccel methods` lists them"
        f" (default: {default if '.' in default else f'--preset {default}'})",
    )
    parser.add_argument("--preset", help="exact, balanced or fast, instead of methods; see `mmaccel presets`")
    parser.set_defaults(default=default)
    parser.add_argument("--plan", type=Path, help="a plan saved before, instead of methods")


def _env(_: argparse.Namespace) -> None:
    import torch

    from .bench import machine

    for name, value in {**versions(), **machine()}.items():
        print(f"{name:<14}{value}")
    print(f"{'cuda':<14}{torch.cuda.get_device_name() if torch.cuda.is_available() else 'not available'}")


def _methods(arguments: argparse.Namespace) -> None:
    from .registry import methods

    wanted = _modalities(arguments)
    for name, method in methods().items():
        if name.split(".")[0] in wanted:
            print(f"{name}  [{'lossless' if method.lossless else 'lossy'}]")
            print(f"    {method.summary()}")
            print(f"    settings: {', '.join(f'{k}={v!r}' for k, v in method().settings().items())}")
            print(f"    paper: {method.paper}\n")


def _presets(arguments: argparse.Namespace) -> None:
    from .presets import listing

    print("\n\n".join(listing(modality) for modality in _modalities(arguments)))


def _modalities(arguments: argparse.Namespace) -> tuple[str, ...]:
    from .errors import unknown_name
    from .registry import MODALITIES

    if arguments.modality not in (None, *MODALITIES):
        raise unknown_name("modality", arguments.modality, MODALITIES)
    return MODALITIES if arguments.modality is None else (arguments.modality,)


def _plan(arguments: argparse.Namespace) -> None:
    from .plan import plan

    chosen, preset = chosen_methods(arguments)
    made = plan(target_of(arguments), *chosen, preset=preset)
    print(made)
    if arguments.output:
        with replacing(arguments.output) as temporary:
            made.save(temporary)
        print(f"saved to {arguments.output}")


def _compare(arguments: argparse.Namespace) -> None:
    print(run_compare(arguments))
    if arguments.output:
        print(f"wrote {arguments.output}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _quiet_libraries() -> None:
    """Their progress bars and advice would bury ours."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.set_verbosity_error()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
