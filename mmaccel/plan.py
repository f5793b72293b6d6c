"""Plan: resolved and conflict-checked methods for one target; printable, saved to and loaded from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .adapter import Adapter, find_adapter
from .errors import (
    ConflictError,
    MmaccelError,
    UnsupportedTargetError,
    UsageError,
    WeightsError,
    nearest,
    shown,
    unknown_name,
)
from .files.foreign_json import check_plain, read_json
from .files.output import replacing
from .method import Method
from .presets import NAMES, Preset, absent_of, presets_of
from .registry import is_name, is_saved, methods, saved_method
from .tuning.curve import describe, is_point
from .version import versions

FORMAT = 1
MOST_BYTES = 1 << 20  # size of a plan's file; a curve of a hundred settings takes 50 KiB
ADVICE = "make one with mmaccel.plan(...).save()"


@dataclass(frozen=True)
class Plan:
    """The methods for a target, the versions they were planned with, and the measurements behind the choice.

    `why` is the measured row of the preset that it came from, in a sentence; empty where there was none.

    Examples
    --------
    >>> from mmaccel import image
    >>> print(Plan((image.ZipAR(window=2),), family="janus"))
    plan for janus (lossy)
      image.ZipAR(window=2): lossy
    """

    methods: tuple[Method, ...]
    family: str
    versions: dict[str, str] = field(default_factory=versions, compare=False)
    measured: list[dict[str, Any]] = field(default_factory=list, compare=False)
    why: str = field(default="", compare=False)

    @property
    def modality(self) -> str:
        """Of its first method; empty where it has none."""
        return _modality(self.methods)

    @property
    def exact(self) -> bool:
        """Whether every method keeps the distribution of the target's output."""
        return all(method.exact for method in self.methods)

    @property
    def call_arguments(self) -> frozenset[str]:
        """Arguments of a call that its methods take for themselves."""
        return frozenset().union(*(method.call_arguments for method in self.methods))

    def __str__(self) -> str:
        lines = [f"plan for {self.family} ({_kind(self.exact)})"]
        for method in self.methods:
            lines += [f"  {method}: {_kind(method.exact)}", *(f"    holds {held}" for held in method.held())]
        lines += [f"    {self.why}"] if self.why else []
        for point in self.measured:
            lines.append(f"    measured {saved_method(point)}: {describe(point)}")
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "versions": self.versions,
            "family": self.family,
            "methods": [{"name": m.name, "settings": m.settings()} for m in self.methods],
            **({"measured": self.measured} if self.measured else {}),
            **({"why": self.why} if self.why else {}),
        }

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Rebuild a plan; its settings are checked like typed ones.

        Raises
        ------
        WeightsError
            If the data is not a plan, or holds values that cannot be printed.
        SettingError, UnknownNameError
            If a method does not accept the saved settings.
        """
        try:
            check_plain(data)
            _check_saved(data)
        except WeightsError as error:
            raise WeightsError(f"this plan {error}: {ADVICE}") from error
        measured = list(data.get("measured", []))
        for point in measured:
            saved_method(point)
        chosen = tuple(saved_method(saved) for saved in data["methods"])
        return cls(chosen, data["family"], dict(data["versions"]), measured, data.get("why", ""))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that :meth:`save` wrote.

        Raises
        ------
        WeightsError
            If the file cannot be read, or is not a plan.
        SettingError, UnknownNameError
            If a method does not accept the saved settings.
        """
        data = read_json(path, MOST_BYTES, ADVICE)
        try:
            return cls.from_dict(data)
        except MmaccelError as error:
            raise type(error)(f"{path}: {error}") from error


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _lists(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


# The parts of a saved plan besides its format: a check for each value, and the kind that it must be.
PARTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "family": (_is_text, "a text"),
    "versions": (lambda value: isinstance(value, dict) and all(map(_is_text, value.values())), "an object of texts"),
    "methods": (lambda value: value != [] and _lists(is_saved)(value), "a list of methods with settings"),
    "measured": (_lists(is_point), "a list of measured settings"),
    "why": (_is_text, "a text"),
}


def _check_saved(data: Any) -> None:
    """Raise a `WeightsError` unless all parts are there with the right type; the message lacks its subject."""
    if not isinstance(data, dict) or "format" not in data:
        raise WeightsError("has no format")
    if data["format"] != FORMAT:
        raise WeightsError(f"has format {data['format']!r}, which is not {FORMAT}")
    data = {"measured": [], "why": "", **data}
    for name, (fits, kind) in PARTS.items():
        if name not in data:
            raise WeightsError(f"has no {name}")
        if not fits(data[name]):
            raise WeightsError(f"has {name}={shown(data[name])}, which is not {kind}")


def _kind(exact: bool) -> str:
    return "exact" if exact else "lossy"


def plan(target: Any, *methods: Method | Plan, preset: str | None = None) -> Plan:
    """Resolve methods for a target, and check that they fit it and each other; changes nothing.

    Parameters
    ----------
    target
        A transformers model or diffusers pipeline.
    *methods
        Methods, or plans whose methods are used.
    preset
        ``"exact"``, ``"balanced"`` or ``"fast"``: methods measured to suit the family, instead of your own;
        `mmaccel presets` lists them with their rows.

    Raises
    ------
    UnsupportedTargetError, ConflictError, UnknownNameError
    """
    return resolve(target, *methods, preset=preset)[0]


def resolve(target: Any, *methods: Method | Plan, preset: str | None = None) -> tuple[Plan, Adapter]:
    """A plan and the adapter it was checked against."""
    adapter = find_adapter(target, _modality(methods))
    chosen, why = list(_flatten(methods, adapter)), ""
    if preset is not None:
        if chosen:
            raise ConflictError("give methods or a preset, not both")
        found = _preset(adapter, preset)
        chosen, why = list(found.methods), f"{preset}: {found}"
    if not chosen:
        presets = ", ".join(map(repr, presets_of(adapter.modality, adapter.family)))
        raise ConflictError(f"nothing to do: name a method{f', or a preset ({presets})' if presets else ''}")
    _check(chosen, adapter)
    if preset is None and len(methods) == 1 and isinstance(methods[0], Plan):
        return methods[0], adapter  # with what was measured of it, and by which versions
    return Plan(tuple(chosen), family=adapter.family, why=why), adapter


def modality_of(method: Method | type[Method]) -> str:
    """The modality that a method is registered with."""
    return method.name.split(".")[0]


def _modality(methods: tuple[Any, ...]) -> str:
    """That of the first method or plan; empty where there is none."""
    first = methods[0] if methods else None
    if isinstance(first, Plan):
        return first.modality
    return modality_of(first) if isinstance(first, Method) else ""


def _preset(adapter: Adapter, name: str) -> Preset:
    """The preset of this name; an error says why a family lacks it."""
    if not isinstance(name, str):
        raise UsageError(f"preset={shown(name)}: give the name of one, such as preset='balanced'")
    family = adapter.family
    found, absent = presets_of(adapter.modality, family), absent_of(adapter.modality, family)
    if name in absent:
        others = " or ".join(f"preset={other!r}" for other in found)
        advice = f": take {others}, or name methods" if others else ""
        raise UnsupportedTargetError(f"{family} models have no preset {name!r}, since {absent[name]}{advice}")
    if not found:
        raise UnsupportedTargetError(f"{family} models have no presets: name methods")
    if name not in found:
        raise unknown_name(f"preset for {family}", name, found)
    return found[name]


def _flatten(methods: tuple[Method | Plan, ...], adapter: Adapter) -> Any:
    for item in methods:
        if isinstance(item, Plan):
            if item.family != adapter.family:
                raise UnsupportedTargetError(
                    f"this plan was made for {item.family}, and the target is {adapter.family}:"
                    " make a plan for it with mmaccel.plan(target, ...)"
                )
            yield from item.methods
        elif isinstance(item, Method):
            yield item
        elif isinstance(item, type) and issubclass(item, Method):
            raise UsageError(f"{item.__name__} is a class: write {item.__name__}()")
        else:
            raise _no_method(item)


def _no_method(item: Any) -> UsageError:
    """The error for anything else in place of a method."""
    advice = "`mmaccel methods` lists them"
    if isinstance(item, str) and (item in NAMES or is_name(item)):
        advice = f"write {_written(item)}"
    elif isinstance(item, str):
        of_call = f"{advice}, and compare takes the input of a call by name, as in prompt=..."
        advice = nearest(item, [*methods(), *NAMES], _written) or of_call
    elif isinstance(item, dict):
        advice = "mmaccel.get_method(name).from_settings(settings) makes one"
    elif isinstance(item, list | tuple):
        advice = "give methods one by one, as in accelerate(model, *methods)"
    return UsageError(f"{shown(item)} is not a method: {advice}")


def _written(name: str) -> str:
    """The preset or the method of this name, as it is given."""
    return f"preset={name!r}" if name in NAMES else f"mmaccel.get_method({name!r})()"


def _check(chosen: list[Method], adapter: Adapter) -> None:
    for i, method in enumerate(chosen):
        modality = modality_of(method)
        if modality != adapter.modality:
            beside = find_adapter(adapter.target, modality)
            if beside.modality == modality and beside.fits(method):
                raise ConflictError(
                    f"{chosen[0]} and {method} work on two parts of a {type(adapter.target).__name__}: open one session"
                    " on the pipeline, and for the other method one on the model inside it"
                )
            raise UnsupportedTargetError(
                f"{method.name} does not work on {adapter.family} models;"
                f" `mmaccel methods --modality {adapter.modality}` lists those that do"
            )
        if not adapter.fits(method):
            raise UnsupportedTargetError(adapter.unfit(method))
        adapter.check(method)
        for other in chosen[:i]:
            if type(method).conflicts(type(other)):
                raise ConflictError(f"{other} and {method} cannot be combined: keep one of them")
