"""What `mmaccel env` prints."""

from __future__ import annotations

import argparse
from typing import Any

from ..version import versions


def add_parser(commands: Any) -> None:
    """Add `env` to the command line."""
    env = commands.add_parser("env", help="versions and devices, for bug reports")
    env.set_defaults(run=run_env, loads_models=False)


def run_env(_: argparse.Namespace) -> None:
    """Print versions, and what this machine is."""
    from ..machine import machine

    found = machine()
    for name, value in {**versions(), **found}.items():
        print(f"{name:<14}{value}")
    print(f"{'cuda':<14}{'not available' if found['accelerator'] == 'none' else found['accelerator']}")
