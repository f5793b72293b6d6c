"""The command `mmaccel compare`: its arguments, and its work."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from ..comparison.comparison import check_format
from ..comparison.ranks import Ranks
from ..files.output import check_writable
from .arguments import in_options
from .command import Command, add_kinds
from .model_arguments import add_methods
from .run import check_apart

SEEDS = 3
EXAMPLES = """examples:
  mmaccel compare image "red heart" --method image.ZipAR:window=2 -o heart.html
  mmaccel compare video "rocket moves up" --preset fast --seeds 2 -o rocket.html
  mmaccel compare vlm --example --method vlm.DyCoke:keep=0.15
  mmaccel compare vlm clip.mp4 "what moves up?" -o clip.html
  mmaccel compare speech --example -o talk.html
  mmaccel compare speech talk.wav --method speech.SuffixDraft -o talk.html
  mmaccel compare speech one.wav two.mp3 --method speech.MergeAudioTokens --reference "what one says" \\
      --reference "what two says" -o both.html
  mmaccel compare canvas --example --method canvas.FactorCommit -o canvas.html
"""


def add_parser(commands: Any) -> None:
    """Add `compare` with its kinds to the command line."""
    about = "compare methods with the plain run and the simple alternative"
    for command, kind in add_kinds(commands, "compare", about, EXAMPLES, SEEDS):
        add_methods(kind, command.preset, command.preset_help)
        kind.add_argument("-o", "--output", type=Path, help="page (.html), picture (.png) or rows (.json) to write")
        kind.set_defaults(run=partial(run_compare, command))


def run_compare(command: Command, arguments: argparse.Namespace) -> None:
    """Compare each method that the user named; print and write the result."""
    if arguments.output:
        check_format(arguments.output)
    check_writable(arguments.output)
    check_apart(arguments, "output")
    ranks = Ranks.launched()  # before a model is loaded, so that "cuda" is the GPU of this process
    found = command.compare(arguments)
    if ranks.rank > 0:
        return  # the first process prints and writes
    try:
        print(in_options(str(found)), flush=True)
    finally:  # also where its reader is gone, who may have left while it was measured
        if arguments.output:
            found.save(arguments.output)
    if arguments.output:
        print(f"wrote {arguments.output}")
