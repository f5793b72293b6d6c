"""The call that a runner repeats, and how a modality repeats, judges and shows it for `compare`.

A modality says so in a subclass of :class:`BaseTrial`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..adapter import Adapter
from ..errors import SettingError
from ..machine import forked_rng
from ..modality import get_modality

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from ..plan import Plan
    from ..session import Session


@dataclass(frozen=True)
class Metric:
    """A figure of quality.

    Attributes
    ----------
    key
        Its name in rows.
    title
        As the heading of a column, with the unit.
    meaning
        What is measured, in a sentence; also `quality_metric` of a row.
    form
        Format of its numbers.
    higher_is_better
        Decides which seed is the worst.
    relative
        Whether it is a distance to the plain output, which the plain output itself lacks.
    """

    key: str
    title: str
    meaning: str
    form: str = ".3f"
    higher_is_better: bool = True
    relative: bool = False

    def worst(self, values: dict[int, float]) -> int:
        """The seed with the worst value; none is worse than NaN."""
        sign = 1 if self.higher_is_better else -1
        return min(values, key=lambda seed: -math.inf if math.isnan(values[seed]) else sign * values[seed])


@dataclass(frozen=True)
class Shown:
    """An output in a form that people can see.

    Attributes
    ----------
    clips
        Pictures of each row of the batch; a clip has several.
    texts
        Answers of each row.
    names
        Names of the rows; empty if nothing tells them apart.
    rate
        Frames per second.
    """

    clips: list[list[Image.Image]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rate: float = 8
    names: list[str] = field(default_factory=list)


class Workload(ABC):
    """The call that every entry of a :class:`~mmaccel.comparison.runner.Runner` makes once per seed.

    Class attributes
    ----------------
    unit
        The unit that the simple alternative reduces, such as ``"steps"``.
    remembers
        Whether a session begins with what the one before learned. Not where that is the output itself, such as the
        words of a recording that is written down again.
    timer
        Returns seconds of wall time (default) or of processor time.

    Attributes
    ----------
    target
        The model or pipeline that runs, accelerated in entries with a plan.
    metrics
        The first one is the quality of the table, and finds the worst seed.
    """

    unit: ClassVar[str] = ""
    remembers: ClassVar[bool] = True
    timer: Callable[[], float] = staticmethod(time.perf_counter)
    target: Any = None
    metrics: tuple[Metric, ...] = ()

    @abstractmethod
    def run(self, target: Any, seed: int, fewer: int | None = None) -> Any:
        """Call a session or the plain target; this is what is timed. `fewer` of the unit, None for all."""

    def accelerated(self, plan: Plan) -> Session:
        """A session of the target with a plan."""
        from ..session import accelerate

        return accelerate(self.target, plan)

    def report(self, session: Session, output: Any) -> dict[str, Any]:
        """The session's report of the run that gave `output`; a run of several calls adds them up."""
        return session.report.to_dict()

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two outputs are the same, bit for bit."""
        return False

    def judge(self, plain: Any, other: Any) -> dict[str, Any]:
        """Figures of an output compared with that of the plain entry with the same seed."""
        return {}


class BaseTrial(Workload):
    """One call of a target with the user's own arguments, repeated with several seeds.

    Attributes
    ----------
    count
        How many of the `unit` the call has; with `least` or fewer there is no simple alternative.
    least
        The fewest of them that anyone would choose; default 1.
    no_simple
        Why there is none.
    model
        Name of the target, if it differs from the target's own.
    draws
        Whether an output is a sample, so that a method that keeps the distribution gives another one.
    seedless
        Why all seeds give the same output; empty where they do not.
    about
        A description of the plain run, if its name does not say it.
    taken
        Arguments that methods of the comparison take: a session gets those of its own methods, the plain target none.
    """

    count: int = 0
    least: int = 1
    no_simple: str = ""
    model: str = ""
    draws: bool = False
    seedless: str = ""
    about: str = ""
    taken: frozenset[str] = frozenset()

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        self.adapter, self.target, self.inputs, self.processor = adapter, adapter.target, inputs, processor
        if "generator" in inputs:
            raise SettingError("leave out generator=: compare makes one for every seed, such as seeds=range(4)")

    def arguments(self, target: Any, call: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call that are for a session, or for the plain target."""
        from ..session import Session

        own = target.plan.call_arguments if isinstance(target, Session) else frozenset()
        given = {name: value for name, value in call.items() if name not in self.taken - own}
        return {**given, "processor": self.processor} if "processor" in own else given

    def visual_share(self, fewer: int) -> float | None:
        """Share of the visual tokens in this many units; None if there are none or it is unknown."""
        return None

    @abstractmethod
    def equal(self, one: Any, other: Any) -> bool:
        """Whether two outputs are the same, bit for bit."""

    @abstractmethod
    def judge(self, plain: Any, other: Any) -> dict[str, float]:
        """The metrics of an output compared with that of the plain target with the same seed."""

    @abstractmethod
    def show(self, output: Any) -> Shown:
        """An output in visible form; called only for outputs that are shown."""


def trial_of(
    adapter: Adapter, inputs: dict[str, Any], processor: Any, taken: frozenset[str] = frozenset()
) -> BaseTrial:
    """The trial of a target's modality; raises an `ActiveSessionError` if a session has the target."""
    from ..session import refuse_held

    for part in adapter.parts():
        refuse_held(part)
    trial = get_modality(adapter.modality).trial()(adapter, inputs, processor)
    trial.taken = taken
    return trial


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[torch.Generator]:
    """Seed the global random state inside the block, and restore it after; yields a device's generator of the seed."""
    import torch

    with forked_rng():
        torch.manual_seed(seed)  # which seeds all devices
        yield torch.Generator(device).manual_seed(seed)


@contextmanager
def counted(model: Any) -> Iterator[list[int]]:
    """A list that grows by one entry with each pass that the model makes inside this block."""
    passes = list[int]()
    with model.register_forward_pre_hook(lambda *_: passes.append(1)):
        yield passes
