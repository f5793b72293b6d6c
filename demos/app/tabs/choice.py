"""What is run, and how it is accelerated: the same for every tab."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from mmaccel.cli.model_arguments import parse_method
from mmaccel.errors import SettingError
from mmaccel.method import Method
from mmaccel.plan import modality_of

from ..limits import Limits, number

MOST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Choice:
    """The checked choices of a visitor.

    Attributes
    ----------
    model
        A name that :meth:`Models.check` allows.
    preset
        ``"exact"``, ``"balanced"`` or ``"fast"``; None where own methods stand.
    methods
        Own methods instead of a preset.
    seed
        Never None: drawn where the visitor gave none.
    """

    model: str
    preset: str | None
    methods: tuple[Method, ...]
    seed: int

    @classmethod
    def of(cls, limits: Limits, model: Any, preset: Any, method: Any, seed: Any) -> Choice:
        """Check what came from the browser.

        Parameters
        ----------
        method
            Own methods, ``NAME:KEY=VALUE,...`` as on the command line, one a line; empty for the preset.

        Raises
        ------
        SettingError, UnknownNameError
            If it is nothing that could run, or keeps or loads files here.
        """
        lines = limits.method(method).splitlines()
        methods = tuple(_own_method(line.strip()) for line in lines if line.strip())
        seed = number("seed", seed, 0, MOST_SEED)
        seed = secrets.randbelow(MOST_SEED + 1) if seed is None else seed
        return cls(model, None if methods else str(preset), methods, seed)

    def python(self) -> str:
        """The arguments of `mmaccel.accelerate` after the target, as code."""
        return ", ".join(str(method) for method in self.methods) or f"preset={self.preset!r}"

    def parts(self) -> list[str]:
        """The parts of mmaccel that :meth:`python` names."""
        return sorted({modality_of(method) for method in self.methods})


def _own_method(text: str) -> Method:
    """A method as a visitor typed it; none with files of its own, kept or loaded, which lie outside all limits."""
    method: Method = parse_method(text)
    if method.uses_files:
        raise SettingError(f"{method.name} keeps files on the machine of this page: choose another method")
    return method
