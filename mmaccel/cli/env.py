"""What `mmaccel env` prints."""

from __future__ import annotations

import argparse
from typing import Any

from ..version import versions


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
        for name, choice in choices.items():
            print(f"{'kernels':<14}{name}: {_said(choice)} ({place})")


def _said(choice: Any) -> str:
    """A choice in words: a way of computing, or a break-even density for each measured length."""
    if isinstance(choice, dict):
        return "not measured yet, the machine was busy"
    return ", ".join(map(str, choice)) if isinstance(choice, list) else str(choice)
