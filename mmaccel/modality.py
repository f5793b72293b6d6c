"""Modality: the one place that describes a kind of model to all other parts of mmaccel.

A package that holds a module `modality` with a subclass of :class:`Modality` is found wherever Python finds
`mmaccel`: as a folder of the wheel, as a link of a clone, or mapped there by an editable installation. Other
packages name their subclass as an entry point of the group ``"mmaccel.modalities"``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import unknown_name

if TYPE_CHECKING:
    from .cli.command import Command
    from .comparison.trial import BaseTrial
    from .presets import Preset
    from .testing.example import Example

ENTRY_POINTS = "mmaccel.modalities"


class Modality(ABC):
    """What the command line, `compare`, `tune`, benchmarks, documentation, demo and contract tests ask about.

    A subclass is imported whenever the command line starts, so its methods import what they need themselves.

    Class attributes
    ----------------
    name
        What names of its methods begin with, such as ``"video"``.
    title
        Heading on pages.
    rank
        Its position on pages and in lists; the lowest number comes first.
    model
        The default model, from the zoo or from a wheel.
    note
        A remark below the list of its methods.
    adapters
        Modules and packages below :attr:`package` whose import registers the adapters.
    deferred
        Public names that are no methods, and whose modules import diffusers: :meth:`load` leaves them to their users.
    example
        Python that runs ``{method}`` on a model, for the documentation.
    tab
        Module of the demo's tab, which has a `build(frame)`; empty without one.
    tab_title
        Label of the tab.
    serving
        Module of its part of the HTTP server, which has an `ENDPOINT`, a subclass of
        :class:`mmaccel.serve.endpoint.Endpoint`; empty without one.
    families_section
        Module of its part of the page of model families, which has a `section(planned)` that gets what plans say, and
        yields Markdown; empty where that is all.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    rank: ClassVar[int] = 100
    model: ClassVar[str]
    note: ClassVar[str] = ""
    adapters: ClassVar[tuple[str, ...]] = ("families",)
    deferred: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str] = ""
    tab: ClassVar[str] = ""
    tab_title: ClassVar[str] = ""
    serving: ClassVar[str] = ""
    families_section: ClassVar[str] = ""

    @property
    def package(self) -> str:
        """The package whose `__all__` has the methods."""
        return type(self).__module__.removesuffix(".modality")

    def load(self) -> None:
        """Import all methods and adapters, so that they register themselves."""
        front_door = import_module(self.package)
        for name in front_door.__all__:
            if name not in self.deferred:
                getattr(front_door, name)
        for place in self.adapters:
            module = import_module(f"{self.package}.{place}")
            for found in iter_modules(getattr(module, "__path__", ())):
                import_module(f"{module.__name__}.{found.name}")

    def models(self) -> tuple[str, ...]:
        """Names of the models that need no download; default :attr:`model` alone."""
        return (self.model,)

    def tab_models(self) -> tuple[str, ...]:
        """Those of them that its tab of the demo can run; default all."""
        return self.models()

    def recognizes(self, model: str) -> bool:
        """Whether a model's name or folder shows that it is of this modality."""
        return model in self.models()

    def open(self, model: str, device: str = "cpu", dtype: Any = None) -> Any:
        """A model from a zoo name, a hub id or a folder, with what is needed to call it.

        By default what `load(model, device, dtype)` of module `generation` gives.
        """
        return import_module(f"{self.package}.generation").load(model, device, dtype)

    def target(self, opened: Any) -> Any:
        """The part of what :meth:`open` returned that is accelerated; by default the first of several."""
        return opened[0] if isinstance(opened, tuple) else opened

    @abstractmethod
    def command(self) -> Command:
        """Its part of the command line."""

    def more_commands(self) -> Mapping[str, Command]:
        """Further kinds of `run` by name, each with a model of its own (`Command.model`)."""
        return {}

    def commands(self) -> dict[str, Command]:
        """All its kinds of `run` by name."""
        return {self.name: self.command(), **self.more_commands()}

    @abstractmethod
    def trial(self) -> Callable[..., BaseTrial]:
        """How `compare` and `tune` repeat, judge and show a call: a class, or what chooses one by the adapter."""

    def examples(self) -> list[Example]:
        """Tiny models for the contract tests, one or more of each family; by default those of module `examples`."""
        return import_module(f"{self.package}.examples").examples()

    def presets(self) -> Mapping[str, Mapping[str, Preset]]:
        """Presets by family and name; by default `PRESETS` of module `presets`."""
        return self._own_presets("PRESETS")

    def absent_presets(self) -> Mapping[str, Mapping[str, str]]:
        """Why a family lacks a preset, by family and name; by default `ABSENT` of module `presets`."""
        return self._own_presets("ABSENT")

    def _own_presets(self, table: str) -> Mapping[str, Mapping[str, Any]]:
        """A table of the package's module `presets`; empty where one of the two is missing."""
        name = f"{self.package}.presets"
        if not hasattr(import_module(self.package), "__path__") or find_spec(name) is None:
            return {}
        return getattr(import_module(name), table, {})

    def benchmarks(self) -> Mapping[str, str]:
        """Modules of its benchmarks by name; each has a `BENCHMARK`, see :mod:`mmaccel.bench.benchmark`."""
        return {}


def modalities() -> tuple[Modality, ...]:
    """All modalities that are installed, in the order of pages.

    Examples
    --------
    >>> [modality.name for modality in modalities()][:4]
    ['image', 'video', 'vlm', 'speech']
    """
    return tuple(sorted((cls() for cls in _installed()), key=lambda modality: (modality.rank, modality.name)))


def get_modality(name: str) -> Modality:
    """The modality of this name.

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    found = {modality.name: modality for modality in modalities()}
    if name not in found:
        raise unknown_name("modality", name, found)
    return found[name]


@cache
def _installed() -> tuple[type[Modality], ...]:
    own = (import_module(f"{__package__}.{name}.modality") for name in own_packages())
    classes = [value for module in own for value in vars(module).values() if _is_own(value, module.__name__)]
    return (*classes, *(entry.load() for entry in metadata.entry_points(group=ENTRY_POINTS)))


@cache
def own_packages() -> tuple[str, ...]:
    """Names of mmaccel's own packages that hold a modality, none of which is imported for it.

    Where git makes no links, a file stands in a clone for each package that pip maps: Python finds what it stands for.
    """
    return tuple(path.name for path in sorted(Path(__file__).parent.iterdir()) if _holds_modality(path.name))


def _holds_modality(name: str) -> bool:
    spec = find_spec(f"{__package__}.{name}") if name.isidentifier() else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    return any((Path(folder) / "modality.py").is_file() for folder in folders)


def _is_own(value: Any, module: str) -> bool:
    return isinstance(value, type) and issubclass(value, Modality) and value.__module__ == module
