"""Method: a frozen dataclass that says what to do. Its fields are the settings."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, Generic, Self

from typing_extensions import TypeVar

from .errors import SettingError, UsageError, shown, unknown_name

S = TypeVar("S", default=Any)  # the session that a method is applied to, such as `Session[DiffusionTransformerAdapter]`


@dataclasses.dataclass(frozen=True)
class Advice:
    """What the documentation says of a method beyond its docstring.

    Attributes
    ----------
    helps, costs
        When it helps, and what it costs.
    settings
        Arguments of the method in its example, where the defaults make a poor example.
    example
        Its own code instead of the modality's; see :attr:`mmaccel.modality.Modality.example`.
    """

    helps: str = ""
    costs: str = ""
    settings: str = ""
    example: str = ""


@dataclasses.dataclass(frozen=True)
class Held:
    """Memory that a session comes to hold for a method, told before the run.

    Attributes
    ----------
    what
        Is held, and what sets the bound.
    bytes
        At most; None where the call decides.

    Examples
    --------
    >>> print(Held("a table of 65536 rows", 3 << 20))
    up to 3.0 MiB for a table of 65536 rows
    >>> print(Held("the smaller model of the call"))
    the smaller model of the call
    """

    what: str
    bytes: int | None = None

    def __str__(self) -> str:
        if self.bytes is None:
            return self.what
        small = self.bytes < 1 << 17
        size = f"{self.bytes / 2**10:.1f} KiB" if small else f"{self.bytes / 2**20:.1f} MiB"
        return f"up to {size} for {self.what}"


class Checked:
    """What has settings, and says which of them is wrong."""

    def _require(self, holds: bool, setting: str, allowed: str) -> None:
        """Raise a `SettingError` that names the value and what is allowed, unless `holds`."""
        if not holds:
            value = shown(getattr(self, setting))
            raise SettingError(f"{type(self).__name__}({setting}={value}): {setting} must be {allowed}")


@dataclasses.dataclass(frozen=True)
class Method(Checked, Generic[S]):
    """Base of all methods; subclasses are frozen dataclasses registered with :func:`mmaccel.registry.register`.

    Generic over its session, and thereby over its adapter.

    Class attributes
    ----------------
    name
        Import name below `mmaccel`, such as ``"image.ZipAR"``; set by the registry.
    paper
        Title and year of the implemented paper.
    lossless
        Whether the default settings keep the distribution of the target's output; :attr:`exact` says so for an
        instance.
    advice
        When it helps and what it costs, for the documentation.
    role
        What only one method of a session can do, such as ``"step cache"``; empty where several can.
    excludes
        Names or roles of methods that this one cannot be combined with, beside those of its own role.
    families
        Names of the adapters' families that it works on; None stands for all of its modality that are not `exclusive`.
    repeatable
        Whether two sessions behave alike; false where settings are picked from timings.
    neutral
        Settings at which the method is bit-identical to the target without it.
    engaging
        Settings at which the contract test expects work to differ from the baseline.
    learns
        Whether the effect appears only from a session's second run on, because the first one calibrates.
    adapts
        Whether the output of a run follows from earlier runs of the session; it does not where `memory` is cleared.
    nesting
        In which order methods of a session are attached, whatever theirs: lower numbers first, within the others. 1 for
        one that changes what those beside it see, -1 for one that needs a call as the model gets it; else 0.
    call_arguments
        Arguments of a call that it takes for itself, such as ``"prediction"``: `compare` gives them to nothing else.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    advice: ClassVar[Advice] = Advice()
    lossless: ClassVar[bool] = False
    role: ClassVar[str] = ""
    excludes: ClassVar[frozenset[str]] = frozenset()
    families: ClassVar[frozenset[str] | None] = None
    repeatable: ClassVar[bool] = True
    neutral: ClassVar[dict[str, Any]] = {}
    engaging: ClassVar[dict[str, Any]] = {}
    learns: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    nesting: ClassVar[int] = 0
    call_arguments: ClassVar[frozenset[str]] = frozenset()

    @property
    def exact(self) -> bool:
        """Whether this instance keeps the target's output: equal tokens, or the same distribution."""
        return self.lossless

    @property
    def uses_files(self) -> bool:
        """Whether this instance keeps or loads files beside the model's, of which strangers must not say where."""
        return False

    def held(self) -> tuple[Held, ...]:
        """What a session comes to hold for it beside the model and its cache, before any run."""
        return ()

    def __post_init__(self) -> None:
        """Make paths texts and numbers of numpy and torch plain ones, before a subclass checks its settings."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            plain = os.fspath(value) if isinstance(value, os.PathLike) else plain_number(value)
            object.__setattr__(self, field.name, plain)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check = cls.__post_init__

        @functools.wraps(check)
        def plain_first(self: Method) -> None:
            Method.__post_init__(self)
            check(self)

        if "__post_init__" in vars(cls):
            type.__setattr__(cls, "__post_init__", plain_first)

    def attach(self, session: S, stack: ExitStack) -> None:
        """Apply the method to the session's target, and push onto `stack` what removes it again."""
        raise TypeError(f"{type(self).__name__} does not say how it attaches")  # pragma: no cover

    def prepare(self, session: S, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: B027
        """Called with the arguments before each run of a session whose call is the run."""

    def settings(self) -> dict[str, Any]:
        """Names and values of all settings, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self:
        """Build from a dictionary; an unknown key is an error that offers the nearest name.

        Raises
        ------
        UnknownNameError
            If there is no such setting.
        SettingError
            If a value is out of range, or of the wrong type.
        """
        allowed = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(settings, Mapping):
            raise UsageError(f"{shown(settings)}: give settings by name, as method.settings() does")
        for key in settings:
            if key not in allowed:
                raise unknown_name(f"setting of {cls.name}", key, allowed)
        try:
            return cls(**settings)
        except TypeError as error:  # such as a list in place of a word
            given = ", ".join(f"{key}={shown(value)}" for key, value in settings.items())
            raise SettingError(f"{cls.__name__}({given}): {error}; `mmaccel methods` lists what each takes") from error

    @classmethod
    def summary(cls) -> str:
        """First sentence of the docstring."""
        return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")

    @classmethod
    def conflicts(cls, other: type[Method]) -> bool:
        """Whether the two cannot work in one session."""
        mine, theirs = {cls.name, cls.role}, {other.name, other.role}
        return bool((mine & theirs | mine & other.excludes | theirs & cls.excludes) - {""})

    def __str__(self) -> str:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        changed = ", ".join(f"{k}={v!r}" for k, v in self.settings().items() if defaults[k] != v)
        return f"{self.name or type(self).__name__}({changed})"


def is_count(value: Any, low: int = 1, high: int | None = None) -> bool:
    """Whether `value` is an integer (no bool) between `low` and `high`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)


def plain_number(value: Any) -> Any:
    """Numbers of numpy and torch, alone or several, as those of Python, such as JSON takes; anything else as it is.

    Examples
    --------
    >>> import torch
    >>> plain_number(torch.tensor([1, 2])), plain_number((torch.tensor(0.5), None)), plain_number("fast")
    ([1, 2], (0.5, None), 'fast')
    """
    if type(value) in (list, tuple):
        return type(value)(map(plain_number, value))
    return value.tolist() if hasattr(value, "ndim") else value


def is_number(value: Any, low: float, high: float = float("inf")) -> bool:
    """Whether `value` is a finite number between `low` and `high`, both included."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (
        number and abs(value) <= sys.float_info.max and low <= value <= high
    )  # also rejects integers too large for a float


def is_share(value: Any) -> bool:
    """Whether `value` is a number above 0 and at most 1."""
    return is_number(value, 0, 1) and value > 0
