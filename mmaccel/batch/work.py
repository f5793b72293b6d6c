"""Work: one model, in one process, that makes items."""

from __future__ import annotations

import argparse
import errno
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli.arguments import Parser, in_options
from ..errors import MmaccelError, SettingError, shown
from ..report import SUMMED
from ..session import Session
from .batching import Batching
from .items import Item

if TYPE_CHECKING:
    from ..cli.command import Command

# No item is at fault for these: the place that outputs are written to is full, or may not be written to.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
KEPT = (*SUMMED, "methods", "exact", "wall_seconds", "peak_extra_bytes", "engaged", "warnings")


@dataclass(frozen=True)
class Task:
    """An item that waits.

    Attributes
    ----------
    temporary
        Where its output is written.
    plain
        Whether it is also made without methods, to measure what they save.
    """

    item: Item
    temporary: Path
    plain: bool = False


@dataclass
class Made:
    """What became of a task.

    Attributes
    ----------
    error
        Why there is no output; empty where there is one.
    full
        Whether the error is that of the place to write to.
    seconds, plain_seconds
        For the item, and for it without methods, where that was measured.
    report
        Figures of the session's run; none of a target without methods.
    digest, contents
        Of the item, and of its files, as they were when its output was made.
    """

    task: Task
    error: str = ""
    full: bool = False
    seconds: float = 0.0
    plain_seconds: float | None = None
    report: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
    contents: dict[str, Any] = field(default_factory=dict)


def arguments_of(item: Item, batching: Batching, usual: argparse.Namespace) -> argparse.Namespace:
    """The options of an item's call: its own, and otherwise those of the command line.

    Raises
    ------
    SettingError
        If a field is no option, or its value is out of range.
    """
    parser = Parser(prog="", add_help=False)
    batching.add_item(parser)
    fields = dict(item.fields)
    value = fields.pop(batching.field)
    words = [_word(name, given) for name, given in fields.items()]
    replaced = {batching.instead[name]: None for name in fields if name in batching.instead}
    try:
        found = parser.parse_args(words, argparse.Namespace(**{**vars(usual), **replaced}))
    except SettingError as error:
        said = str(error).partition(" (`")[0]
        raise SettingError(re.sub(r"unrecognized arguments: --([^=]*).*", r"unknown field \1", said)) from None
    setattr(found, batching.field, Path(value) if batching.reads else value)
    return found


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, Number | str):
        raise SettingError(f"{name}={shown(value)}: give a number or a text, or leave it out")
    return f"--{name.replace('_', '-')}={value}"


class Work:
    """A model that is loaded, and makes one item after the other.

    Parameters
    ----------
    batching
        How an item is made.
    opened, target
        As in :class:`Batching.make`.
    usual
        The command line.
    """

    def __init__(self, batching: Batching, opened: Any, target: Any, usual: argparse.Namespace) -> None:
        self.batching, self.opened, self.target, self.usual = batching, opened, target, usual

    def make(self, task: Task) -> Made:
        """Make an item; whatever is wrong with it is in what is returned."""
        try:
            return self._make(task)
        except Exception as error:  # one item of many: its error is told at the end
            task.temporary.unlink(missing_ok=True)
            return Made(task, error=_line(error), full=getattr(error, "errno", None) in FULL)

    def _make(self, task: Task) -> Made:
        arguments, contents = arguments_of(task.item, self.batching, self.usual), task.item.contents()
        began = time.perf_counter()
        self.batching.make(self.opened, self.target, arguments, task.temporary)
        made = Made(task, seconds=time.perf_counter() - began, digest=task.item.digest(contents), contents=contents)
        if isinstance(self.target, Session):
            made.report = {name: getattr(self.target.report, name) for name in KEPT}
            try:
                made.plain_seconds = self._plainly(task, arguments) if task.plain else None
            except Exception as error:  # the output is there all the same
                made.report["warnings"] = [*made.report["warnings"], f"not made without methods: {_line(error)}"]
        return made

    def _plainly(self, task: Task, arguments: argparse.Namespace) -> float:
        other = task.temporary.with_name(f"plain-{task.temporary.name}")
        began = time.perf_counter()
        try:
            with self.target.baseline() as plain:
                self.batching.make(self.opened, plain, arguments, other)
            return time.perf_counter() - began
        finally:
            other.unlink(missing_ok=True)


@contextmanager
def working(command: Command, usual: argparse.Namespace) -> Iterator[Work]:
    """Load the model, accelerated, for the block."""
    batching = command.batching
    assert batching is not None
    with command.started(usual) as (opened, target):
        yield Work(batching, opened, target, usual)


def _line(error: Exception) -> str:
    said = in_options(" ".join(str(error).split()))[:400]
    return said if isinstance(error, MmaccelError | OSError) and said else f"{type(error).__name__}: {said}"
