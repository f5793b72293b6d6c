"""From items to outputs: what is finished stays, the rest is made, and every failure is told."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ..cli.arguments import in_options
from ..errors import MmaccelError, SettingError
from ..progress import looks
from .folder import OutputFolder
from .items import Item
from .total import told
from .work import FULL, Made, Task, arguments_of, working

if TYPE_CHECKING:
    from ..cli.command import Command

Workers = Callable[[list[Task]], Iterator[Made]]
SHOWN = 10  # failures that are told; a file has all


@dataclass
class Outcome:
    """How a run ended.

    Attributes
    ----------
    made, before
        Items that were made now, and that were there already.
    failures
        Reasons by key.
    """

    made: int
    before: int
    failures: dict[str, str]


def here(command: Command, usual: argparse.Namespace) -> Workers:
    """One model in this process."""

    def work(tasks: list[Task]) -> Iterator[Made]:
        with working(command, usual) as found:
            yield from map(found.make, tasks)

    return work


def run(
    items: list[Item],
    folder: OutputFolder,
    command: Command,
    usual: argparse.Namespace,
    workers: Workers,
    baseline: int = 0,
) -> Outcome:
    """Make all items that are not finished, in an open folder.

    Parameters
    ----------
    workers
        What makes tasks, in any order.
    baseline
        So many items are also made without methods.

    Raises
    ------
    SettingError
        If no item can be made.
    OSError
        If there is no room for outputs; those that are finished stay.
    """
    readable = [item for item in items if not item.problem]
    looking = {"desc": "look at what is finished", "unit": "items", "leave": False, "delay": 1.0}
    before = [item for item in tqdm(readable, **{**looking, **looks()}) if folder.holds(item)]
    finished = {item.key for item in before}
    failures = _problems(items, command, usual, folder)
    if len(failures) == len(items):
        key, reason = next(iter(failures.items()))
        raise SettingError(f"none of {len(items)} items can be made; the first, {key}: {reason}")
    waiting = [item for item in items if item.key not in finished and item.key not in failures]
    step = max(1, len(waiting) // baseline) if baseline else len(waiting) + 1
    tasks = [
        Task(item, folder.temporary(number), plain=number % step == step - 1 and number // step < baseline)
        for number, item in enumerate(waiting)
    ]
    bar = tqdm(total=len(items), initial=len(items) - len(tasks), desc="batch", unit="items", **looks())
    with bar:
        for made in workers(tasks) if tasks else ():
            if made.full:
                raise _no_room(folder, made.error)
            error = made.error or _commit(folder, made)
            if error:
                failures[made.task.item.key] = error
            bar.update()
    return Outcome(len(folder.records.keys() & {item.key for item in waiting}), len(before), failures)


def _commit(folder: OutputFolder, made: Made) -> str:
    """Put an output into its place; why that cannot be, such as a key that is a folder of another, or empty."""
    try:
        folder.commit(made)
    except OSError as error:
        if error.errno in FULL:
            raise _no_room(folder, str(error)) from error
        return f"its key names no place for {folder.output(made.task.item.key)} ({error.strerror}): give another"
    return ""


def _no_room(folder: OutputFolder, reason: str) -> OSError:
    return OSError(f"cannot write to {folder.path} ({reason}): make room, and say the same again to go on")


def _problems(items: list[Item], command: Command, usual: argparse.Namespace, folder: OutputFolder) -> dict[str, str]:
    """What is wrong with items, as far as it shows before the model is loaded."""
    batching = command.batching
    assert batching is not None
    found = {}
    for item in items:
        try:
            if item.problem:
                raise SettingError(item.problem)
            batching.check(arguments_of(item, batching, usual), folder.output(item.key))
        except MmaccelError as error:
            found[item.key] = in_options(str(error))
    return found


def tell(outcome: Outcome, folder: OutputFolder, items: list[Item], baseline: int = 0) -> None:
    """Print what was saved, what failed, and where the outputs are."""
    records = [folder.records[item.key] for item in items if item.key in folder.records]
    if records:
        _print(told(records, baseline))
    failed = folder.write_failures(outcome.failures)
    for key, reason in list(outcome.failures.items())[:SHOWN]:
        _print(f"failed: {key}: {reason}", sys.stderr)
    if len(outcome.failures) > SHOWN:
        _print(f"... and {len(outcome.failures) - SHOWN} more: {failed} has all", sys.stderr)
    before = f", {outcome.before} of them before" if outcome.before else ""
    lost = f", {len(outcome.failures)} failed" if outcome.failures else ""
    _print(f"{len(records)} of {len(items)} finished, in {folder.path}{before}{lost}")


def _print(text: str, file: Any = None) -> None:
    (file or sys.stdout).write(f"{text}\n")


def check_places(source: Path, output: Path) -> None:
    """Raise a `SettingError` for outputs that would be inputs of the next run."""
    if source.is_dir() and output.resolve().is_relative_to(source.resolve()):
        raise SettingError(f"-o {output} lies in {source}, whose files are the input: write beside it")
