"""What `mmaccel run` takes, by kind, each with examples of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .arguments import COUNT, FRAMES, SIDE, STEPS, TOKENS, number, positive, seed, whole
from .model_arguments import add_methods, add_model
from .run import POLICIES, run_image, run_speech, run_video, run_vlm

IMAGE = """examples:
  mmaccel run image "red heart" -o heart.png --compare
  mmaccel run image "small pizza on green" -o pizza.png --method image.ZipAR:window=2
  mmaccel run image "a fox in snow" -o fox.png --model deepseek-community/Janus-Pro-1B --preset fast
"""
VIDEO = """examples:
  mmaccel run video "rocket moves up, blue background" -o clip.mp4 --compare --trace trace.png
  mmaccel run video "pizza stays" -o pizza.gif --method video.EasyCache:threshold=0.1 --steps 20
"""
VLM = """examples:
  mmaccel run video "rocket moves up, blue background" -o clip.mp4
  mmaccel run vlm clip.mp4 "what moves up?" --compare --picture kept.png
  mmaccel run vlm talk.mp4 "who speaks?" --fps 2 --model llava-hf/llava-onevision-qwen2-0.5b-ov-hf
"""
SPEECH = """examples:
  mmaccel run speech talk.wav -o talk.srt
  mmaccel run speech --live talk.wav
  arecord -q -t raw -f S16_LE -r 16000 | mmaccel run speech -
"""
SIDE_BY_SIDE = "also run plainly, and write both side by side into a second file, such as {}"


def add_run(commands: Any) -> None:
    """Add `run` with its kinds to the command line."""
    parser = commands.add_parser("run", help="generate with a model, accelerated")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for add in (_image, _video, _vlm, _speech):
        add(kinds)


def _kind(kinds: Any, name: str, about: str, examples: str) -> Any:
    looks = argparse.RawDescriptionHelpFormatter
    return kinds.add_parser(name, help=about, description=about, epilog=examples, formatter_class=looks)


def _image(kinds: Any) -> None:
    image = _kind(kinds, "image", "draw a prompt", IMAGE)
    image.add_argument("prompt")
    image.add_argument("-o", "--output", type=Path, required=True, help="picture to write (.png, .jpg or .webp)")
    add_model(image)
    add_methods(image)
    image.add_argument("--compare", action="store_true", help=SIDE_BY_SIDE.format("heart.compare.png"))
    image.add_argument("--seed", type=seed, default=0, help="where randomness starts from (default 0)")
    image.add_argument("--count", type=whole(1, COUNT), default=1, help=f"pictures of the prompt, at most {COUNT}")
    image.add_argument("--guidance", type=number(), help="guidance scale (default: the model's own)")
    image.add_argument("--temperature", type=positive, help="above 1 is bolder (default: the model's own)")
    share = number("above 0 and at most 1", lambda value: 0 < value <= 1)
    image.add_argument("--top-k", type=whole(0), help="draw from so many codes, 0 for all (default: the model's own)")
    image.add_argument("--top-p", type=share, help="draw from codes of so much probability (default: the model's own)")
    image.set_defaults(run=run_image)


def _video(kinds: Any) -> None:
    video = _kind(kinds, "video", "film a prompt", VIDEO)
    video.add_argument("prompt")
    video.add_argument("-o", "--output", type=Path, required=True, help="clip to write (.mp4, .gif, .webp or .png)")
    add_model(video, "tiny-wan")
    add_methods(video, "balanced")
    video.add_argument("--compare", action="store_true", help=SIDE_BY_SIDE.format("clip.compare.mp4"))
    video.add_argument("--trace", type=Path, help="also draw what was computed when, as a picture")
    video.add_argument("--seed", type=seed, default=0, help="where randomness starts from (default 0)")
    add_clip(video)
    video.add_argument("--guidance", type=number(), help="guidance scale (default: the pipeline's own)")
    video.set_defaults(run=run_video)


def add_clip(parser: Any) -> None:
    """Add what says how long and how large a clip is."""
    for name, meaning, most in (
        ("steps", "denoising steps", STEPS),
        ("frames", "frames", FRAMES),
        ("height", "pixels", SIDE),
        ("width", "pixels", SIDE),
    ):
        parser.add_argument(f"--{name}", type=whole(1, most), help=f"{meaning} (default: the pipeline's own)")


def add_answer(parser: Any) -> None:
    """Add what says how much of a video is looked at, and how long an answer may be."""
    parser.add_argument("--frames", type=whole(1, FRAMES), default=32, help="frames to look at, at most (default 32)")
    length = "longest answer (default 32)"
    parser.add_argument("--max-new-tokens", type=whole(1, TOKENS), default=32, metavar="TOKENS", help=length)


def _vlm(kinds: Any) -> None:
    question = _kind(kinds, "vlm", "ask about a video", VLM)
    question.add_argument("video", type=Path, help="video file, such as .mp4")
    question.add_argument("question")
    add_model(question, "tiny-onevision")
    add_methods(question, "balanced")
    question.add_argument("--compare", action="store_true", help="also answer plainly, and measure the speed-up")
    question.add_argument("--picture", type=Path, help="also draw which patches were kept, over the frames")
    add_answer(question)
    question.add_argument("--fps", type=positive, help="frames a second to look at, instead of --frames")
    question.set_defaults(run=run_vlm)


def _speech(kinds: Any) -> None:
    speech = _kind(kinds, "speech", "write down what is said", SPEECH)
    speech.add_argument("audio", help="audio or video file, or - for raw 16-bit samples on standard input")
    speech.add_argument("-o", "--output", type=Path, help="subtitles to write (.srt, .vtt or .json)")
    add_model(speech, "moonshine-tiny")
    speech.add_argument("--live", action="store_true", help="print words as they become stable (- always does)")
    speech.add_argument("--rate", type=whole(1), default=16_000, help="samples a second of - (default 16000)")
    speech.add_argument("--channels", type=whole(1, 64), default=1, help="channels of - (default 1)")
    speech.add_argument("--policy", choices=sorted(POLICIES), default="local-agreement", help="which words are stable")
    interval = number("between 0.1 and 60 seconds", lambda value: 0.1 <= value <= 60)
    speech.add_argument("--update-interval", type=interval, default=0.5, help="seconds between looks (default 0.5)")
    speech.add_argument("--endpoint", choices=["auto", "silero", "energy"], default="auto", help="what finds pauses")
    speech.add_argument("--silence", type=positive, default=0.5, help="seconds of silence that end a segment")
    speech.add_argument("--longest", type=positive, default=15.0, help="seconds after which a segment is cut")
    speech.add_argument(
        "--packed", action="store_true", help="hold weights twice, as oneDNN wants them: faster on a CPU in float32"
    )
    speech.set_defaults(run=run_speech)
