"""The command `mmaccel batch`: its arguments, and its work."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from ..batch.batching import Batching
from ..batch.items import TEXT
from ..cluster.connection import HERE
from ..errors import SettingError
from ..modality import modalities
from .arguments import RUNS, examples_of, kinds_of, whole
from .command import Command
from .model_arguments import add_model

ABOUT = "Make many items with one model, accelerated. Each output appears once, and whole."
MORE = (
    "INPUT is a folder of files ({files}), or a .jsonl or .parquet list with a row for each item. A row has `{field}`;"
    " it may have a `key`, which names its output (default: the number of the row){options}. The same command again"
    " goes on where it was stopped, by whatever, and tries again what failed."
)
WIDTH = 78  # characters of a line: argparse wraps no description beside examples
EXAMPLES = """examples:
  mmaccel batch image prompts.jsonl -o pictures
  mmaccel batch video prompts.jsonl -o clips --preset fast --baseline 3
  mmaccel batch vlm clips -o answers --question "what moves up?"
  mmaccel batch document pages -o texts --ray
  mmaccel batch speech recordings -o subtitles --format .vtt
  mmaccel batch canvas pictures -o lists
  mmaccel batch image prompts.parquet -o /shared/pictures --ray 10.0.0.5:6379 --workers 8
"""
# What says where and how, but not what an output is: it may differ from one run into a folder to the next.
ELSEWHERE = ("kind", "command", "run", "loads_models", "input", "output", "root", "ray", "workers", "baseline")
METHODS = ("method", "preset", "plan", "default")
WORKERS = 10_000


def add_parser(commands: Any) -> None:
    """Add `batch`, with a kind for each model that takes many items, to the command line."""
    kinds = kinds_of(commands, "batch", "make many items from a folder or a list, accelerated", epilog=EXAMPLES)
    for modality in modalities():
        for name, command in modality.commands().items():
            if (batching := command.batching) is not None:
                looks = {"description": _about(batching), "epilog": examples_of(name, EXAMPLES)}
                kind = kinds.add_parser(name, help=batching.help, **looks)
                _add_places(kind, batching.writes)
                batching.add_item(kind)
                command.add_acceleration(kind)
                if kind.get_default("default") is not None:  # it has methods
                    both = "also make N items without methods, to measure the speed-up (default 0)"
                    kind.add_argument("--baseline", type=whole(0, RUNS), default=0, metavar="N", help=both)
                add_model(kind, command.model or modality.model)
                kind.set_defaults(run=partial(run_batch, command))


def _about(batching: Batching) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    batching.add_item(parser)
    names = ", ".join(f"`{name}`" for name in vars(parser.parse_args([])))
    options = f", and options of its own, such as {names}" if names else ""
    more = MORE.format(field=batching.field, files=", ".join(batching.reads or (TEXT,)), options=options)
    return f"{ABOUT}\n\n{textwrap.fill(more, WIDTH, break_long_words=False, break_on_hyphens=False)}"


def _add_places(parser: Any, endings: tuple[str, ...]) -> None:
    parser.add_argument("input", type=Path, metavar="INPUT", help="a folder, or a list (.jsonl, .parquet)")
    output = "the folder of the outputs, with the list of what is finished in its folder .mmaccel"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help=output)
    parser.add_argument("--format", choices=endings, default=endings[0], help=f"of the outputs (default {endings[0]})")
    root = "where the files lie that a list names (default: the list's own folder)"
    parser.add_argument("--root", type=Path, metavar="FOLDER", help=root)
    spread = "spread the items with Ray: over this machine, or over a cluster at an address such as 10.0.0.5:6379"
    parser.add_argument("--ray", nargs="?", const=HERE, metavar="ADDRESS", help=spread)
    processes = "processes with --ray, each with a model of its own (default: one for each core, or each GPU)"
    parser.add_argument("--workers", type=whole(1, WORKERS), metavar="N", help=processes)


def run_batch(command: Command, arguments: argparse.Namespace) -> int:
    """Make the items; returns 1 if some failed."""
    from ..batch import run
    from ..batch.folder import OutputFolder
    from ..batch.items import left_out, read_items

    if (count := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise SettingError(
            f"a launcher started {count} processes, and each would make all items: start one, which spreads them over"
            " the GPUs or cores of this machine, or over a cluster, with --ray"
        )
    baseline = getattr(arguments, "baseline", 0)
    if baseline and arguments.plain:
        raise SettingError("--plain is without methods, which --baseline measures: leave one of them out")
    if arguments.workers and arguments.ray is None:
        raise SettingError("--workers is for --ray: say both, or neither")
    batching = command.batching
    assert batching is not None
    run.check_places(arguments.input, arguments.output)
    if said := left_out(arguments.input, batching):
        print(said, file=sys.stderr)
    items = read_items(arguments.input, batching, arguments.root)
    usual = argparse.Namespace(**{name: value for name, value in vars(arguments).items() if name not in ELSEWHERE})
    usual.kind = arguments.kind
    workers = run.here(command, usual)
    if arguments.ray is not None:
        from ..cluster.spread import spread

        workers = spread(command, usual, arguments.output, arguments.ray, arguments.workers)
    with OutputFolder(arguments.output, manifest(command, arguments), arguments.format) as folder:
        outcome = run.run(items, folder, command, usual, workers, baseline)
        run.tell(outcome, folder, items, baseline)
    return 1 if outcome.failures else 0


def manifest(command: Command, arguments: argparse.Namespace) -> dict[str, Any]:
    """What makes the outputs, in JSON: the kind, the methods, and all options that are not about where."""
    from ..version import __version__

    given = vars(arguments)
    options = {name: value for name, value in given.items() if name not in (*ELSEWHERE, *METHODS, "format", "device")}
    chosen, preset = command.methods(arguments) if "method" in given else ([], None)
    methods = [
        {"name": one.name, "settings": one.settings()} for item in chosen for one in getattr(item, "methods", [item])
    ]
    told = {
        name: value if isinstance(value, int | float | str | None) else str(value) for name, value in options.items()
    }
    return {"version": __version__, "kind": arguments.kind, "methods": methods, "preset": preset, **told}
