"""The errors a user can meet. Each says what is wrong, where, and the next line to type."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any


class MmaccelError(Exception):
    """Base of all errors that mmaccel raises on purpose."""


class SettingError(MmaccelError, ValueError):
    """The value of a setting is out of range."""


class UnknownNameError(MmaccelError, ValueError):
    """No method, model, preset or setting has this name."""


class UnsupportedTargetError(MmaccelError, TypeError):
    """The target's family is not supported by these methods, or cannot do what they need."""


class UsageError(MmaccelError, TypeError):
    """Something of the wrong kind was given, such as a name in place of a method, or a session to copy."""


class ConflictError(MmaccelError, ValueError):
    """These methods cannot work together."""


class ActiveSessionError(MmaccelError, RuntimeError):
    """The target is already accelerated by a live session, or in the middle of a run, or its session was removed.

    Attributes
    ----------
    session
        The one that has it, to remove it where nothing else does; None for a run of its own.
    """

    def __init__(self, message: str, session: Any = None) -> None:
        super().__init__(message)
        self.session = session


class WeightsError(MmaccelError, ValueError):
    """A weights or plan file is truncated, foreign or made for something else."""


class MemoryLimitError(MmaccelError, MemoryError):
    """The request does not fit into free memory; raised before the run."""


class MissingExtraError(MmaccelError, ImportError):
    """An optional package is missing; the error gives the line that installs it."""


def required(module: str, lacking: str) -> Any:
    """An optional module; where it cannot be imported, a :class:`MissingExtraError` that says what is `lacking`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(lacking) from error


class StreamFinishedError(MmaccelError, RuntimeError):
    """A stream received more input after it was finished or closed."""


class VideoFileError(MmaccelError, OSError):
    """A video file is missing, cut off or damaged, or holds no frames."""


class AudioError(MmaccelError, ValueError):
    """Audio is missing, damaged, empty, or holds numbers that cannot be samples."""


class PromptError(MmaccelError, ValueError):
    """A prompt is empty, or outside what a small model knows."""


NO_MEMORY = "out of memory", "can't allocate memory", "not enough memory"  # torch's words: GPUs, CPUs, and on Windows


def lacks_memory(error: BaseException) -> bool:
    """Whether there was too little memory; torch tells it by words alone on a CPU and an Apple GPU."""
    is_told = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return is_told or isinstance(error, MemoryError)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value: Any) -> str:
    """A value for an error: as Python writes it, at most a line long.

    Examples
    --------
    >>> shown("exact"), shown([[[[[[[[0]]]]]]]])
    ("'exact'", '[[[[[[[...]]]]]]]')
    """
    return _short.repr(value)


def unknown_name(kind: str, name: Any, options: Iterable[str]) -> UnknownNameError:
    """An error that suggests the nearest names, or lists all if none is near.

    Examples
    --------
    >>> print(unknown_name("preset", "exat", ["exact", "balanced"]))
    unknown preset 'exat': did you mean 'exact'?
    """
    options = list(options)
    every = "choose from " + ", ".join(map(repr, options)) if options else "there are none"
    return UnknownNameError(f"unknown {kind} {shown(name)}: {nearest(name, options) or every}")


def nearest(name: Any, options: Iterable[str], written: Callable[[str], str] = repr) -> str:
    """The question whether one of the nearest names was meant, each as it is `written`; empty if none is near."""
    near = difflib.get_close_matches(str(name), list(options), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(written, near))}?" if near else ""
