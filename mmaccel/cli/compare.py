"""What `mmaccel compare` takes, and what it does with that."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..comparison.comparison import Comparison, check_format
from ..files.output import check_writable
from .calls import add_kinds, measured_inputs
from .model_arguments import add_methods, chosen_methods

SEEDS = 3
DEFAULTS = {"image": "exact", "video": "balanced", "vlm": "balanced", "speech": "streams"}  # if none is said
STREAMS = "words while they are spoken, with verified drafts and without"
EXAMPLES = """examples:
  mmaccel compare image "red heart" --method image.ZipAR:window=2 -o heart.html
  mmaccel compare video "rocket moves up" --preset fast --seeds 2 -o rocket.html
  mmaccel compare vlm --example --method vlm.DyCoke:keep=0.15
  mmaccel compare vlm clip.mp4 "what moves up?" -o clip.html
  mmaccel compare speech --example -o talk.html
  mmaccel compare speech talk.wav --method speech.SuffixDraft -o talk.html
  mmaccel compare speech one.wav two.mp3 --method speech.MergeAudioTokens --reference "what one says" \\
      --reference "what two says" -o both.html
"""


def add_parser(commands: Any) -> None:
    """Add `compare` with its kinds to the command line."""
    about = "methods beside the plain run and the simple alternative"
    for name, kind in add_kinds(commands, "compare", about, EXAMPLES, SEEDS):
        add_methods(kind, DEFAULTS[name], STREAMS if name == "speech" else "")
        kind.add_argument("-o", "--output", type=Path, help="page (.html), picture (.png) or rows (.json) to write")
        kind.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> None:
    """Compare each of the methods that are given; print what was found, and write it."""
    if arguments.output:
        check_format(arguments.output)
    check_writable(arguments.output)
    found = _compare(arguments)
    print(found, flush=True)
    if arguments.output:
        found.save(arguments.output)
        print(f"wrote {arguments.output}")


def _compare(arguments: argparse.Namespace) -> Comparison:
    from ..comparison.compare import compare

    if arguments.kind == "speech" and not (arguments.method or arguments.preset or arguments.plan):
        return _compare_streams(arguments)
    chosen, preset = chosen_methods(arguments)
    target, inputs = measured_inputs(arguments)
    return compare(target, *chosen, preset=preset, **inputs)


def _compare_streams(arguments: argparse.Namespace) -> Comparison:
    """What speech gains most by, which is no method of `generate`: drafts of a stream."""
    from mmaccel.speech.stream.stream_comparing import compare_streams

    model, inputs = arguments.prepare(arguments)
    return compare_streams(model, **inputs, rounds=arguments.rounds, simple=not arguments.no_simple)
