"""The command `mmaccel plan`: its arguments, and its work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..files.output import check_writable
from ..modality import modalities
from .model_arguments import add_methods, add_model, chosen_methods, target_of


def add_parser(commands: Any) -> None:
    """Add `plan` to the command line."""
    parser = commands.add_parser("plan", help="resolve and check methods for a model, and save them")
    add_model(parser, modalities()[0].model)
    add_methods(parser, otherwise="the first of the presets exact, balanced and fast that the model has")
    parser.add_argument("-o", "--output", type=Path, help="write the plan as JSON")
    parser.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> None:
    """Print and save the plan for a model and methods."""
    from ..adapter import find_adapter
    from ..plan import plan
    from ..presets import presets_of

    check_writable(arguments.output)
    chosen, preset = chosen_methods(arguments)
    target = target_of(arguments)
    if not chosen and arguments.preset is None:
        adapter = find_adapter(target)
        preset = next(iter(presets_of(adapter.modality, adapter.family)), preset)
    made = plan(target, *chosen, preset=preset)
    print(made)
    if arguments.output:
        made.save(arguments.output)
        print(f"saved to {arguments.output}")
