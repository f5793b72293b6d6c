"""Numbers of the command line: checked where they are typed, so that messages name options and not Python arguments."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from ..errors import SettingError
from ..report import UNMEASURED

LARGEST_SEED = 2**64 - 1  # torch's own bound
COUNT = 64  # pictures of one prompt, which are drawn in one batch
STEPS = 1000  # diffusion models are trained on no more
FRAMES = 768  # of a clip; what Qwen's processors take at most
SIDE = 8192  # pixels
TOKENS = 32_768  # of an answer
RUNS = 1000  # seeds, and rounds of them
THREADS = 1024
OPTIONS = {  # advice in the words of Python, and in those of the command line
    re.escape(UNMEASURED): "not measured: say --compare",
    r"\b(preset|endpoint)=(['\"])(\w+)\2": r"--\1 \3",
    r"\bpass policy=speech\.LocalAgreement\(2\)": "say --policy local-agreement",
    r"\bpass endpoint=speech\.\w+\(longest=([\d.]+)\)": r"say --longest \1",
    r"\bgrid=(?=[,;.\s]|$)": "--setting",
    r"\bgrid=\{'(\w+)': \(\.\.\.\)\}": r"--setting \1=V1,V2",
    r"\btarget_speedup=(?=\d)": "--target-speedup ",
    r"\bfloor=(?=\s)": "--floor",
    r"\bguidance_scale=(?=[\d.]+: )": "--guidance ",
    r"\bmore rounds=(?= )": "more --rounds",
    r" or read what is there with skip_damaged=True,": "",  # which no command has
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others of the command line are, and that completes no options.

    Where `run` has ``--seed``, argparse would take that for the ``--seeds`` of `compare`.
    """

    def __init__(self, **looks: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **looks})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As of argparse; what is unknown is an error of the command at hand, whose help has all that there is."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        said = re.sub(r"^argument (\S+): (.*: it must be)", r"\1 \2", message).removeprefix("argument ")
        raise SettingError(f"{said} (`{self.prog} --help` has all options)")


def kinds_of(commands: Any, name: str, about: str, **texts: str) -> Any:
    """Add a command that is followed by a kind, with `texts` in its help; returns what kinds are added to."""
    looks: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = commands.add_parser(name, help=about, **texts, **looks)
    return parser.add_subparsers(dest="kind", required=True, metavar="KIND", parser_class=partial(Parser, **looks))


def examples_of(kind: str, examples: str) -> str | None:
    """Of a command's examples, those of one kind; None where it has none.

    Examples
    --------
    >>> print(examples_of("vlm", "examples:\\n  mmaccel batch image a.jsonl\\n  mmaccel batch vlm clips"))
    examples:
      mmaccel batch vlm clips
    """
    title, *lines = re.split(r"\n(?=  \S)", examples.rstrip())
    its = [line for line in lines if re.match(rf"  mmaccel \w+ {kind}\b", line)]
    return "\n".join([title, *its]) if its else None


def in_options(text: str) -> str:
    """A text whose advice names options, where it names arguments of Python.

    Examples
    --------
    >>> in_options("there is no such preset: take preset='fast'")
    'there is no such preset: take --preset fast'
    """
    for python, option in OPTIONS.items():
        text = re.sub(python, option, text)
    return text


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Reads a whole number between `low` and `high`.

    Examples
    --------
    >>> whole(1, 64)("8")
    8
    """
    bounds = f"at least {low}" + ("" if high is None else f" and at most {high}")

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{_short(text)}: it must be a whole number of {bounds}")
        return value

    return read


def number(allowed: str = "a finite number", holds: Callable[[float], bool] = lambda _: True) -> Callable[[str], float]:
    """Reads a finite number that passes `holds`; `allowed` says in words which do.

    Examples
    --------
    >>> number("above 0", lambda value: value > 0)("0.5")
    0.5
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not holds(value):
            raise argparse.ArgumentTypeError(f"{_short(text)}: it must be {allowed}")
        return value

    return read


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


positive = number("a number above 0", lambda value: value > 0)
seed = whole(0, LARGEST_SEED)  # that random generators start from
