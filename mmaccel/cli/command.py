"""Command: a modality's part of the command line."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import SettingError
from ..modality import get_modality, modalities
from .arguments import RUNS, examples_of, kinds_of, number, whole
from .model_arguments import add_methods, add_model, chosen_methods, opened

if TYPE_CHECKING:
    from ..batch.batching import Batching
    from ..comparison.comparison import Comparison
    from ..serve.endpoint import Endpoint

Prepared = tuple[Any, dict[str, Any]]  # a target, and the inputs of its call


class Command(ABC):
    """How `run` calls the models of a modality, and how `compare` and `tune` measure that call.

    The command line creates it at every start, so its methods import models and torch themselves.

    Class attributes
    ----------------
    help
        What `run` does, such as ``"draw a prompt"``.
    measured
        What `compare` and `tune` measure, such as ``"drawing a prompt"``.
    examples
        What is shown below the help of `run`, line by line.
    preset
        What `compare` uses by default: a preset, a method, or a word of the modality's own.
    preset_help
        The meaning of that word.
    floor
        The quality that `tune --floor` keeps, such as ``"at least so many dB PSNR"``.
    seeded
        Whether the call draws random numbers, so that its output depends on the seed.
    model
        The default model; empty for that of the modality.
    batching
        How `batch` makes many items; None where it cannot.
    """

    help: ClassVar[str]
    measured: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()
    preset: ClassVar[str] = "balanced"
    preset_help: ClassVar[str] = ""
    floor: ClassVar[str] = "of the trial's first metric"
    seeded: ClassVar[bool] = False
    model: ClassVar[str] = ""
    batching: ClassVar[Batching | None] = None

    @abstractmethod
    def add_run(self, parser: Any) -> None:
        """Add the arguments of `run`, apart from the model."""

    @abstractmethod
    def run(self, arguments: argparse.Namespace) -> None:
        """Make the call; print and write its output."""

    @abstractmethod
    def add_call(self, parser: Any) -> None:
        """Add the arguments of `compare` and `tune`, apart from model, methods, seeds and rounds."""

    @abstractmethod
    def prepare(self, arguments: argparse.Namespace) -> Prepared:
        """The target and the inputs of its call; raises, before the model is loaded, if something is missing."""

    def methods(self, arguments: argparse.Namespace) -> tuple[list[Any], str | None]:
        """The methods that the user named, or a preset."""
        return chosen_methods(arguments)

    def open(self, arguments: argparse.Namespace) -> tuple[Any, Any]:
        """What was loaded of the model that the user named, and the part of it that is accelerated."""
        model = opened(arguments)
        return model, get_modality(arguments.kind).target(model)

    def add_acceleration(self, parser: Any) -> None:
        """Add the arguments of `serve` and `batch` that say how the model is accelerated."""
        add_methods(parser, self.preset)
        parser.add_argument("--plain", action="store_true", help="without methods, to see what they save")

    @contextmanager
    def started(self, arguments: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
        """What was loaded, and the session or the plain target that `serve` and `batch` call inside the block."""
        from .. import session

        if arguments.plain and (arguments.method or arguments.preset or arguments.plan):
            raise SettingError("--plain is without methods: leave out --method, --preset and --plan, or --plain itself")
        chosen, preset = self.methods(arguments)
        model, target = self.open(arguments)
        plain = nullcontext(target)
        with plain if arguments.plain else session.accelerate(target, *chosen, preset=preset) as used:
            yield model, used

    @contextmanager
    def served(self, arguments: argparse.Namespace) -> Iterator[Endpoint[Any]]:
        """What `serve` answers with, inside the block."""
        with self.started(arguments) as (model, used):
            yield import_module(get_modality(arguments.kind).serving).ENDPOINT(arguments.model, model, used)

    def compare(self, arguments: argparse.Namespace) -> Comparison:
        """Run `compare` with its arguments."""
        from ..comparison.compare import compare

        chosen, preset = self.methods(arguments)
        target, inputs = self.measured_inputs(arguments)
        return compare(target, *chosen, preset=preset, **inputs)

    def measured_inputs(self, arguments: argparse.Namespace) -> Prepared:
        """The target, and all other arguments of `compare` and `tune` except the methods."""
        target, inputs = self.prepare(arguments)
        seeds = range(getattr(arguments, "seeds", 1))
        measure = {"seeds": seeds, "rounds": arguments.rounds, "simple": not arguments.no_simple}
        return target, {**measure, "ranks": True, **inputs}


def add_kinds(commands: Any, name: str, about: str, examples: str, seeds: int) -> Iterator[tuple[Command, Any]]:
    """Add a command with one kind for each modality, and yield each modality's command with its parser.

    `seeds` is the default number of seeds.
    """
    kinds = kinds_of(commands, name, about, epilog=examples)
    for modality in modalities():
        command = modality.command()
        kind = kinds.add_parser(modality.name, help=command.measured, epilog=examples_of(modality.name, examples))
        command.add_call(kind)
        _add_rounds(kind, command.seeded, seeds)
        add_model(kind, modality.model)
        yield command, kind


def _add_rounds(parser: Any, seeded: bool, seeds: int) -> None:
    if seeded:
        parser.add_argument(
            "--seeds", type=whole(1, RUNS), default=seeds, help=f"number of seeds, counted from 0 (default {seeds})"
        )
        parser.add_argument("--guidance", type=number(), help="guidance scale (default: the model's own)")
    rounds = "runs of each seed (default: 3 runs in all, or one of each seed)" if seeded else "runs (default 3)"
    parser.add_argument("--rounds", type=whole(1, RUNS), help=rounds)
    parser.add_argument("--no-simple", action="store_true", help="leave out the simple alternative")


def check_example(arguments: argparse.Namespace, given: list[Any], such_as: str) -> None:
    """Raise unless the user gave either all of his own input, or ``--example`` alone."""
    if arguments.example and any(given):
        raise SettingError("--example replaces a file of your own: give one of the two")
    if not arguments.example and not (given and all(given)):
        lacking = "a part of the input is missing" if any(given) else "there is no input"
        raise SettingError(f"{lacking}: give {such_as}, or --example for a shipped one")
