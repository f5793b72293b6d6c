"""Adapter: where things are in one model family. Methods never name a model class."""

from __future__ import annotations

import difflib
from abc import ABC
from typing import Any, ClassVar, TypeVar

from .errors import UnsupportedTargetError
from .method import Method
from .registry import is_redefined, load_modalities


class AcceleratedTarget:
    """Base of what is accelerated already: of sessions, which are made of adapters and not known to them."""


class Adapter(ABC):
    """Base of all adapters: one instance per accelerated target.

    Attributes
    ----------
    family
        Name of the model family, as in reports and plans.
    kin
        A family whose methods work on this one too; may be empty.
    classes
        Names of the transformers or diffusers classes it fits, subclasses included. Names and not
        classes, so that nothing is imported before it is needed.
    modality
        The modality whose methods fit.
    call_is_run
        Whether calling the target is a run that the report describes, as with a pipeline. Where `generate` is the run,
        :func:`mmaccel.patching.wrap_generate` keeps the report.
    exclusive
        Whether only those methods fit that name the family; others of its modality are for other kinds of models.
    beside
        Modalities whose methods work on another part of the same target.
    advice
        What to do where a method does not work on this family; may be empty.
    """

    family: str
    kin: ClassVar[str] = ""
    classes: ClassVar[tuple[str, ...]]
    modality: ClassVar[str]
    call_is_run: bool = False
    exclusive: ClassVar[bool] = False
    beside: ClassVar[frozenset[str]] = frozenset()
    advice: ClassVar[str] = ""

    def __init__(self, target: Any) -> None:
        self.target = target

    def parts(self) -> list[Any]:
        """The objects that methods may touch; no two live sessions share one."""
        return [self.target]

    def fits(self, method: Method) -> bool:
        """Whether a method of this modality is for this family."""
        if method.families is None:
            return not self.exclusive
        return bool(method.families & {self.family, self.kin})

    def unfit(self, method: Method) -> str:
        """The error for a method that is for other families."""
        fit = " and ".join(sorted(method.families or ())) or "other"
        advice = f": {self.advice}" if self.advice else ""
        return f"{method.name} works on {fit} models, and {type(self.target).__name__} is a {self.family} model{advice}"

    def check(self, method: Method) -> None:  # noqa: B027  optional, most families have nothing to check
        """Raise if a method's settings cannot fit this target; called before anything is touched."""

    def check_call(self, kwargs: dict[str, Any]) -> None:  # noqa: B027  optional too
        """Raise if the arguments of `generate` are of no use to this session; called before each run of it."""


_adapters: list[type[Adapter]] = []
A = TypeVar("A", bound=type[Adapter])


def register_adapter(cls: A) -> A:
    """Class decorator: make a family known to :func:`find_adapter`; the same class defined anew replaces it."""
    _adapters[:] = [*(old for old in _adapters if not is_redefined(old, cls)), cls]
    return cls


def adapters() -> list[type[Adapter]]:
    """All adapters, in the order they were registered."""
    load_modalities()
    return list(_adapters)


def find_adapter(target: Any, modality: str = "") -> Adapter:
    """The adapter for a target; of this modality, where its methods work on another part of it.

    Raises
    ------
    UnsupportedTargetError
        Says what to give instead, or which classes of a similar name are supported.
    """
    if isinstance(target, AcceleratedTarget):
        raise UnsupportedTargetError("this Session is accelerated already: give its .target, after .remove()")
    found = _fitting(target)
    if found:
        others = [adapter for adapter in found if adapter.modality == modality and modality in found[0].beside]
        return [*others, found[0]][0](target)
    name = type(target).__name__
    raise UnsupportedTargetError(f"no adapter for {name}: {instead_of(target) or similar_classes(name)}")


def _fitting(target: Any) -> list[type[Adapter]]:
    """The adapters of its class, then those of the classes that it is derived from."""
    lineage = [cls.__name__ for cls in type(target).__mro__]
    return [adapter for name in lineage for adapter in adapters() if name in adapter.classes]


def instead_of(target: Any) -> str:
    """What to give in place of a target that is no model but leads to one; empty of any other."""
    if isinstance(target, str):
        return "load the model first, and give that"
    if isinstance(target, tuple):
        return "give the model alone, which is the first of what a loader returns"
    if hasattr(target, "_orig_mod"):
        return "compile it in place, with model.compile(), and give the model itself"
    if hasattr(target, "get_base_model"):
        return "give the model inside, model.get_base_model()"
    inside = {name: getattr(target, name, None) for name in ("model", "module")}
    wrapped = (f"give its .{name}.get_base_model()" for name, part in inside.items() if hasattr(part, "get_base_model"))
    return next((f"give its .{name}" for name, part in inside.items() if _fitting(part)), next(wrapped, ""))


def similar_classes(name: str, kind: type[Adapter] = Adapter) -> str:
    """Which classes of a name like this one are supported by adapters of a kind, and where all others are."""
    known = [name for adapter in adapters() if issubclass(adapter, kind) for name in adapter.classes]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.75)
    names = ", ".join([*near, "the classes on the page Model families of the documentation"])
    return f"supported are {names} (CONTRIBUTING.md says how to add one)"
