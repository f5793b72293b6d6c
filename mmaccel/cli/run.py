"""The command `mmaccel run`: its arguments, and the parts that all modalities share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..files.output import beside, check_writable
from ..modality import modalities
from ..report import Report
from .arguments import in_options, kinds_of
from .model_arguments import add_model

SIDE_BY_SIDE = "also run plainly, and write both side by side into a second file, such as {}"


def add_parser(commands: Any) -> None:
    """Add `run` with its kinds, one or more for each modality, to the command line."""
    kinds = kinds_of(commands, "run", "generate with a model, accelerated")
    for modality in modalities():
        for name, command in modality.commands().items():
            examples = "\n  ".join(["examples:", *command.examples])
            kind = kinds.add_parser(name, help=command.help, description=command.help, epilog=examples)
            command.add_run(kind)
            add_model(kind, command.model or modality.model)
            kind.set_defaults(run=command.run)


def told(report: Report) -> str:
    """A report for the command line: it advises an option where the report advises a line of Python."""
    return in_options(str(report))


def check_picture(path: Path | None, option: str) -> None:
    """Raise if an optional picture cannot be written to this path."""
    if path is not None:
        from ..files.pictures import check_format

        check_format(path)
        check_writable(path, option)


def check_apart(arguments: argparse.Namespace, *written: str) -> None:
    """Raise if a file that is written, by the name of its argument, is an input or is written by two of them.

    Inputs are the paths of all other arguments.
    """
    paths = {name: _places(value) for name, value in vars(arguments).items()}
    if getattr(arguments, "compare", False) and (output := getattr(arguments, "output", None)):
        paths["compare"] = _places(beside(output, "compare"))
    for name in written:
        others = (other for other in paths if other != name and paths[other] & paths[name])
        if (other := next(others, None)) is not None:
            option = "-o" if name == "output" else f"--{name}"
            why = "is written twice" if other in (*written, "compare") else "is an input, which would be lost"
            raise SettingError(f"{option} {getattr(arguments, name)} {why}: write elsewhere")


def _places(value: Any) -> set[str]:
    """Where the paths lie among the values of an argument, with links followed."""
    values = value if isinstance(value, list) else [value]
    return {os.path.realpath(path) for path in values if isinstance(path, Path)}


def side_by_side(arguments: argparse.Namespace) -> Path | None:
    """Path of both runs side by side, or None without ``--compare``; raises if a result cannot be written."""
    both = beside(arguments.output, "compare") if arguments.compare else None
    check_writable(arguments.output)
    check_writable(both)
    return both


def tell_written(arguments: argparse.Namespace, both: Path | None) -> None:
    """Print where the result is, and where both runs are side by side."""
    print(f"wrote {arguments.output}" + (f", and {both} with the plain one beside it" if both else ""))
