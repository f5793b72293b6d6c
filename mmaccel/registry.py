"""The one registry of methods; docs, command line, contract tests and benchmarks all read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from .errors import UsageError, shown, unknown_name
from .method import Method
from .modality import modalities

_methods: dict[str, type[Method]] = {}
_loaded: set[str] = set()
M = TypeVar("M", bound=type[Method])


def register(modality: str) -> Callable[[M], M]:
    """Class decorator: register a method as ``modality.ClassName``; the same class defined anew replaces it.

    Raises
    ------
    ValueError
        If the name is taken by another class, or the class leaves `paper` or its docstring empty.
    """

    def enter(cls: M) -> M:
        name = f"{modality}.{cls.__name__}"
        if name in _methods and not is_redefined(_methods[name], cls):
            raise ValueError(f"a method named {name} is registered already")
        if not cls.paper or not cls.__doc__:
            raise ValueError(f"{name} needs a `paper` and a docstring")
        cls.name = name
        _methods[name] = cls
        return cls

    return enter


def is_redefined(old: type, new: type) -> bool:
    """Whether a class is the definition of an earlier one, run again as in a notebook."""
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)


def load_modalities() -> None:
    """Import every modality that is installed, so that its methods and adapters are registered."""
    for modality in modalities():
        if modality.name not in _loaded:
            modality.load()
            _loaded.add(modality.name)


def methods() -> dict[str, type[Method]]:
    """All methods by name, in alphabetical order.

    Examples
    --------
    >>> "image.SpeculativeJacobi" in methods()
    True
    """
    load_modalities()
    return dict(sorted(_methods.items()))


def get_method(name: str) -> type[Method]:
    """The method of this name; the modality may be omitted if the rest is unambiguous.

    Some methods have a second name in another modality, where their users look for them.

    Examples
    --------
    >>> get_method("EasyCache") is get_method("image.EasyCache") is get_method("video.EasyCache")
    True
    """
    if not isinstance(name, str):
        raise UsageError(f"{shown(name)} is not the name of a method, such as 'video.EasyCache'")
    found = _found(name)
    if found is None:
        raise unknown_name("method", name, methods())
    return found


def is_name(name: str) -> bool:
    """Whether a method has this name, as :func:`get_method` takes them."""
    return _found(name) is not None


def _found(name: str) -> type[Method] | None:
    table = methods()
    short = {full.split(".")[1]: cls for full, cls in table.items()}
    return table.get(name) or short.get(name) or _shared(name)


def _shared(name: str) -> type[Method] | None:
    """A method by its name in another modality that lists it too."""
    prefix, _, short = name.rpartition(".")
    packages = [modality.package for modality in modalities() if modality.name == prefix]
    found = getattr(import_module(packages[0]), short, None) if packages else None
    return found if isinstance(found, type) and issubclass(found, Method) and found.name else None


def is_saved(found: Any) -> bool:
    """Whether :func:`saved_method` can read it; the name and the settings need not be right."""
    if not isinstance(found, Mapping):
        return False
    name, settings = found.get("name"), found.get("settings")
    return isinstance(name, str) and isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings)


def saved_method(saved: Mapping[str, Any]) -> Method:
    """A method from the ``name`` and ``settings`` in a plan or a curve.

    Examples
    --------
    >>> print(saved_method({"name": "image.ZipAR", "settings": {"window": 2}}))
    image.ZipAR(window=2)
    """
    return get_method(saved["name"]).from_settings(saved["settings"])
