"""A pipeline's call in the words of this package: what it refuses, what it needs, and what it left out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mmaccel.errors import MmaccelError, SettingError, UnsupportedTargetError
from mmaccel.report import Report
from mmaccel.session import Session

IN_PYTHON = "call it in Python, with mmaccel.accelerate(pipe, ...)"
PICTURES = ("image", "images", "control_image", "conditioning_frames", "video")  # arguments of diffusers' pipelines


@contextmanager
def calling(target: Any, given: Collection[str]) -> Iterator[None]:
    """A block in which a session or a plain pipeline is called with these arguments.

    What the pipeline warns of, such as a prompt that it cut off, goes into the session's report.

    Raises
    ------
    SettingError
        If the pipeline refuses a setting.
    UnsupportedTargetError
        If it makes nothing without a picture.
    """
    try:
        with _heard() as said:
            yield
    except MmaccelError:
        raise
    except ValueError as error:
        raise SettingError(f"the pipeline refuses this: {error}") from error
    except (AttributeError, TypeError) as error:
        pipe = target.target if isinstance(target, Session) else target
        missing = _missing_picture(pipe, given, str(error))
        if missing is None:
            raise
        raise UnsupportedTargetError(f"{type(pipe).__name__} also needs {missing}=: {IN_PYTHON}") from error
    if isinstance(target, Session):
        tell(target.report, said)


def tell(report: Report, said: Sequence[str]) -> None:
    """Add what a pipeline said to a report, behind why its methods did nothing."""
    told = report.told() if said else []
    for text in (*told, *said):
        report.warn(text)


def _missing_picture(pipe: Any, given: Collection[str], error: str) -> str | None:
    """The argument for a picture without which a call ended in this error; None where it ended otherwise.

    Many pipelines that cannot do without one have None as its default, and stumble over that later.
    """
    takes = [name for name in inspect.signature(type(pipe).__call__).parameters if name in PICTURES]
    return next(iter(takes), None) if "NoneType" in error and not {*takes} & {*given} else None


class _Listener(logging.Handler):
    """Keeps warnings, each as one line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(" ".join(record.getMessage().split()))


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What diffusers' pipelines warn of in this block; it is printed only where it would have been anyway."""
    log, listener = logging.getLogger("diffusers.pipelines"), _Listener()
    level, propagates = log.level, log.propagate
    log.propagate = propagates and log.isEnabledFor(logging.WARNING)
    log.setLevel(min(log.getEffectiveLevel(), logging.WARNING))
    log.addHandler(listener)
    try:
        yield listener.said
    finally:
        log.removeHandler(listener)
        log.setLevel(level)
        log.propagate = propagates
