"""A pipeline's call in the words of this package: what it refuses, what it needs, and what it left out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from mmaccel.errors import MmaccelError, SettingError, UnsupportedTargetError
from mmaccel.report import Report
from mmaccel.session import Session

IN_PYTHON = "call it in Python, with mmaccel.accelerate(pipe, ...)"
PICTURES = ("image", "images", "control_image", "conditioning_frames", "video")  # arguments of diffusers' pipelines
# In names of classes that cannot do without one, though their calls name it with None as its default.
OF_PICTURES = ("Img2Img", "ImageToVideo", "VideoToVideo", "QwenImageEdit", "Pix2Pix")
LOGS = ("diffusers.pipelines", "diffusers.modular_pipelines")


@contextmanager
def calling(target: Any, given: Collection[str]) -> Iterator[None]:
    """A block in which a session or a plain pipeline is called with these arguments.

    What the pipeline warns of, such as a prompt that it cut off, goes into the session's report; it is printed only
    where it would have been anyway.

    Raises
    ------
    SettingError
        If the pipeline refuses a setting.
    UnsupportedTargetError
        If it stumbles over nothing in the place of something, and was given no picture.
    """
    try:
        with ExitStack() as stack:
            said: list[str] = []
            for name in LOGS:
                stack.enter_context(_listening(logging.getLogger(name), said))
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
        raise UnsupportedTargetError(
            f"{type(pipe).__name__} also needs {missing}=, or lacks something else ({error}): {IN_PYTHON}"
        ) from error
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
    takes = _pictures(type(pipe))
    return next(iter(takes), None) if "NoneType" in error and not {*takes} & {*given} else None


def _pictures(cls: type[Any]) -> list[str]:
    """The arguments for pictures of a pipeline's call."""
    return [name for name in inspect.signature(cls.__call__).parameters if name in PICTURES]


def refuse_without_picture(cls: type[Any]) -> None:
    """Raise an `UnsupportedTargetError` for a class of pipelines that is known to need a picture beside the prompt."""
    takes = _pictures(cls)
    if takes and any(words in cls.__name__ for words in OF_PICTURES):
        raise UnsupportedTargetError(f"{cls.__name__} also needs {takes[0]}=: {IN_PYTHON}")


class _Listener(logging.Handler):
    """Keeps warnings, each as one line, and hands on what its logger lets through anyway."""

    def __init__(self, log: logging.Logger, said: list[str]) -> None:
        super().__init__()
        self.said, self.shown = said, log.getEffectiveLevel()
        self.above = log.parent if log.propagate else None

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.said.append(" ".join(record.getMessage().split()))
        if self.above is not None and record.levelno >= self.shown:
            self.above.callHandlers(record)


@contextmanager
def _listening(log: logging.Logger, said: list[str]) -> Iterator[None]:
    """Keep what is warned of in this block, also where only errors are printed."""
    level, propagates, listener = log.level, log.propagate, _Listener(log, said)
    log.propagate = False
    log.setLevel(min(listener.shown, logging.WARNING))
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.setLevel(level)
        log.propagate = propagates
