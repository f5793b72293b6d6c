"""What `mmaccel env` prints."""

from __future__ import annotations

import argparse
import re
import textwrap
from itertools import groupby
from typing import Any

from ..version import versions

WIDTH = 120  # characters of a line
LINEAR = re.compile(r"linear layers of (\d+) rows, (\d+) columns")


def add_parser(commands: Any) -> None:
    """Add `env` to the command line."""
    env = commands.add_parser("env", help="versions and devices, for bug reports")
    env.add_argument("--forget", action="store_true", help="forget which kernels were measured to be fastest here")
    env.set_defaults(run=run_env, loads_models=False)


def run_env(arguments: argparse.Namespace) -> None:
    """Print versions, what this machine is, and which kernels were measured to be the fastest on it."""
    from ..files import kept_choices
    from ..machine import machine

    if arguments.forget:
        kept_choices.forget()
    for name, value in {**versions(), **machine()}.items():
        print(f"{name:<14}{value}")
    for place, choices in kept_choices.here().items():
        place = place.replace(", 1 threads,", ", 1 thread,")
        for name, said in _grouped(choices).items():
            told = f"{'kernels':<14}{name}: {said} ({place})"
            print(textwrap.fill(told, WIDTH, subsequent_indent=" " * 16, break_on_hyphens=False))


def _grouped(choices: dict[str, Any]) -> dict[str, str]:
    """Choices in words, those for linear layers of equal columns together."""
    found, linear = dict[str, str](), dict[int, dict[int, str]]()
    for name, choice in choices.items():
        if match := LINEAR.fullmatch(name):
            rows, columns = map(int, match.groups())
            linear.setdefault(columns, {})[rows] = _said(choice)
        else:
            found[name] = _said(choice)
    for columns, ways in sorted(linear.items()):
        runs = [(way, list(group)) for way, group in groupby(sorted(ways), key=ways.__getitem__)]
        told = [f"{way} for {rows[0]}" + (f" to {rows[-1]}" if len(rows) > 1 else "") for way, rows in runs]
        found[f"linear layers of {columns} columns"] = ", ".join(told) + " rows"
    return found


def _said(choice: Any) -> str:
    """A choice in words: a way of computing, or a break-even density for each measured length."""
    if isinstance(choice, dict):
        return "not measured yet (the machine was busy)"
    return ", ".join(map(str, choice)) if isinstance(choice, list) else str(choice)
