"""What `mmaccel compare` takes, and what it does with that."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .call_commands import Add, add_kinds, measured_inputs
from .comparison import Comparison, check_format
from .output import replacing
from .run_commands import chosen_methods

SEEDS = 3
DEFAULTS = {"image": "exact", "video": "balanced", "vlm": "balanced", "speech": "speech.SuffixDraft"}  # if none is said
EXAMPLES = """examples:
  mmaccel compare image "red heart" --method image.ZipAR:window=2 -o heart.html
  mmaccel compare video "rocket moves up" --preset fast --seeds 2 -o rocket.html
  mmaccel compare vlm --example --method vlm.DyCoke:keep=0.15
  mmaccel compare vlm clip.mp4 "what moves up?" -o clip.html
  mmaccel compare speech talk.wav --method speech.SuffixDraft -o talk.html
  mmaccel compare speech one.wav two.mp3 --method speech.MergeAudioTokens --reference "what one says" \\
      --reference "what two says" -o both.html
"""


def add_parser(commands: Any, add_model: Add, add_methods: Add, run: Callable[[argparse.Namespace], None]) -> None:
    """Add `compare` with its kinds to the command line."""
    about = "methods beside the plain run and the simple alternative"
    for name, kind in add_kinds(commands, "compare", about, EXAMPLES, SEEDS, add_model):
        add_methods(kind, DEFAULTS[name])
        kind.add_argument("-o", "--output", type=Path, help="page (.html), picture (.png) or rows (.json) to write")
        kind.set_defaults(run=run)


def run_compare(arguments: argparse.Namespace) -> Comparison:
    """Compare each of the methods that are given, and write what was found."""
    if arguments.output is None:
        return _compare(arguments)
    check_format(arguments.output)
    with replacing(arguments.output) as temporary:  # fails now, and not after minutes of work
        found = _compare(arguments)
        found.save(temporary)
    return found


def _compare(arguments: argparse.Namespace) -> Comparison:
    from .compare import compare

    chosen, preset = chosen_methods(arguments)
    target, inputs = measured_inputs(arguments)
    return compare(target, *chosen, preset=preset, **inputs)
