"""Batching: what a kind of model makes of one item among many."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class Batching(ABC):
    """How `batch` calls the models of one kind.

    The command line creates it at every start, so its methods import models and torch themselves.

    Class attributes
    ----------------
    field
        What an item must have, such as ``"prompt"`` or ``"video"``.
    reads
        Endings of the files that :attr:`field` names; empty where it is a text.
    files
        Further fields that name files.
    writes
        Endings of outputs; the first is the default.
    instead
        Fields that hold instead of an option of the command line, such as ``{"frames": "fps"}``.
    help
        What it does, such as ``"draw prompts"``.
    """

    field: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]]
    instead: ClassVar[Mapping[str, str]] = {}
    help: ClassVar[str]

    def files_of(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Those fields of an item that name files."""
        names = (*((self.field,) if self.reads else ()), *self.files)
        return tuple(name for name in names if name in fields)

    @abstractmethod
    def add_item(self, parser: Any) -> None:
        """Add the options of a call. Each is also a field of an item, which comes before the command line."""

    def check(self, arguments: argparse.Namespace, path: Path) -> None:
        """Raise a `MmaccelError` for an item that cannot be made, before the model is loaded."""
        return

    @abstractmethod
    def make(self, opened: Any, target: Any, arguments: argparse.Namespace, path: Path) -> None:
        """Make an item and write its output.

        Parameters
        ----------
        opened, target
            As in :class:`mmaccel.serve.endpoint.Endpoint`.
        arguments
            Options of the call, with :attr:`field`.
        path
            Where the output goes; its ending is one of :attr:`writes`.
        """
