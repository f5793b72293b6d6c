"""Endpoint: what a modality answers over HTTP."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import MmaccelError, SettingError, shown
from ..uploads.limits import UploadLimits

if TYPE_CHECKING:
    from .metrics import Metrics
    from .sockets import Connection

Answer = dict[str, Any] | str | bytes  # JSON, a text as it is, or a file
LARGEST_SEED = 2**63 - 1
PATIENCE = 0.1  # seconds between looks at whether a client is still there, or has more to read
CHECK = 5.0  # seconds that a stream or a promise waits to begin, so that what is refused until then has its status
GONE = 499  # nobody reads it; as nginx counts clients that left
KINDS = {401: "authentication_error", 404: "not_found_error", 503: "overloaded_error"}
# Of a file in a request: programs send longer ones than people who try a demo.
FILES = UploadLimits(
    clip_seconds=1_800.0,
    audio_seconds=3_600.0,
    clip_pixels=10**11,
    audio_samples=2 * 48_000 * 3_600,
    read_seconds=60.0,
)


class Refused(MmaccelError):
    """A request is answered by an error.

    Attributes
    ----------
    status
        Of the HTTP answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: BaseException) -> int:
    """Of the HTTP answer to an error: a request that cannot be carried out is the client's own."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, Left):
        return GONE
    return 400 if isinstance(error, MmaccelError) else 500


def message_of(error: BaseException | None) -> str:
    """What a client is told of an error; None is that of an answer that was given up."""
    return str(error) if isinstance(error, MmaccelError) else "the server failed: its log says why"


def late() -> Refused:
    """The error of an answer that is not there in time."""
    return Refused(504, "it took too long: ask for less, or try again later")


def ends() -> Refused:
    """The error of what a server that ends does not answer any more."""
    return Refused(503, "the server ends: try again later")


def told(error: BaseException) -> dict[str, Any]:
    """An error in OpenAI's form."""
    status = status_of(error)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message_of(error), "type": kind, "param": None, "code": None}}


class Left(Exception):  # noqa: N818  no error: nobody waits for the answer any more
    """Everybody who asked has left."""


@dataclass(kw_only=True)
class Request:
    """One request, checked.

    Attributes
    ----------
    group
        Requests of equal groups may be answered in one batch; None (default) for alone.
    size
        Rows of a batch that it takes.
    pieces
        Where its text goes while it is written, in a stream; None (default) for the whole answer at once.
    left
        Set where nobody waits for it any more.
    progress
        In percent, where that is known.
    """

    group: Hashable = None
    size: int = 1
    pieces: queue.SimpleQueue[str] | None = None
    left: threading.Event = field(default_factory=threading.Event)
    progress: int = 0


R = TypeVar("R", bound=Request)


class Endpoint(ABC, Generic[R]):
    """What a modality answers.

    Parameters
    ----------
    name
        Of the model.
    opened
        What :meth:`mmaccel.modality.Modality.open` returned.
    target
        The session, or the plain model.

    Class attributes
    ----------------
    path
        Where it answers, such as ``"/v1/images/generations"``.
    takes_forms
        Whether requests may be multipart forms, which can hold a file, beside JSON.
    later, media
        What is promised where answers are files that are fetched later, such as ``"video"``, and their type, such as
        ``"video/mp4"``; empty where answers are given at once.
    """

    path: str
    takes_forms: bool = False
    later: str = ""
    media: str = ""

    def __init__(self, name: str, opened: Any, target: Any) -> None:
        self.name, self.opened, self.target = name, opened, target

    @abstractmethod
    def parse(self, body: Mapping[str, Any]) -> R:
        """Check a request; raises a `MmaccelError` that says what is wrong with it."""

    @abstractmethod
    def answer(self, requests: list[R]) -> Sequence[Answer]:
        """Answers to requests of one group; raises :class:`Left` where all of them were left meanwhile."""

    async def accepted(self, request: R, future: Future[Answer]) -> None:
        """After it was submitted: raise what is wrong with a request where :meth:`parse` cannot know it."""
        return

    def worker(self, metrics: Metrics, waiting: int, batch: int) -> Any:
        """What requests are submitted to instead of a :class:`mmaccel.serve.worker.Worker`; None (default) for one."""
        return None

    def described(self, request: R) -> dict[str, Any]:
        """What a promise says of a request."""
        return {}

    def sockets(self) -> Mapping[str, Callable[[Connection], Awaitable[None]]]:
        """What talks over a websocket, by path; by default nothing does."""
        return {}

    def pages(self) -> Mapping[str, str]:
        """Pages of HTML for people, by path; none by default."""
        return {}

    def ending(self, request: R) -> list[dict[str, Any]]:
        """The events that end a stream."""
        return [self.piece(request, None)]

    def piece(self, request: R, text: str | None) -> dict[str, Any]:
        """An event of a stream: some text, or None for its end."""
        raise NotImplementedError  # pragma: no cover


class Fields:
    """The fields of a request: each is taken once, and none may remain.

    Examples
    --------
    >>> fields = Fields({"prompt": "red heart", "n": 2})
    >>> fields.text("prompt", 100), fields.whole("n", 1, 10, default=1)
    ('red heart', 2)
    >>> fields.end()
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.left = {name: value for name, value in body.items() if value is not None}

    def take(self, name: str, default: Any = None) -> Any:
        """A field as it is."""
        return self.left.pop(name, default)

    def text(self, name: str, longest: int) -> str:
        """A text that must be there."""
        value = self.take(name)
        if not isinstance(value, str) or not value.strip():
            raise SettingError(f"{name} is missing: give a text")
        if len(value) > longest:
            raise SettingError(f"{name} has {len(value)} characters: shorten it to {longest} or fewer")
        return value

    def flag(self, name: str) -> bool:
        """Whether something is asked for; by default it is not."""
        value = self.take(name, False)
        if not isinstance(value, bool):
            raise SettingError(f"{name}={shown(value)}: it must be true or false")
        return value

    def said(self, name: str) -> bool:
        """Whether something is asked for, where fields are texts; programs in Python write False for false."""
        text = str(self.take(name, "false"))
        if text.lower() not in ("true", "false"):
            raise SettingError(f"{name}={shown(text)}: it must be true or false")
        return text.lower() == "true"

    def whole(self, name: str, low: int, high: int, default: Any = None) -> Any:
        """A whole number."""
        value = self.take(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SettingError(f"{name}={shown(value)}: give a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number, None without one."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise SettingError(f"{name}={shown(value)}: give a number from {low:g} to {high:g}")
        return float(value)

    def only(self, name: str, *allowed: Any) -> None:
        """A field that may only have one of these values, the first of which it has if it is not given."""
        value = self.take(name, allowed[0])
        # for Python, True is 1
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            named = " or ".join(repr(one) for one in allowed if one is not None)
            raise SettingError(f"{name}={shown(value)}: this server takes {named} only, or leave it out")

    def end(self) -> None:
        """Raise if there is a field that nobody took."""
        if self.left:
            raise SettingError(f"{shown(min(self.left))} is not used here: leave it out")
