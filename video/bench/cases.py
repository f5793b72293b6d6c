"""Who runs in the video benchmark: our methods, their parts left out, and the simple alternative."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from mmaccel import zoo
from mmaccel.comparison.entry import Entry
from mmaccel.method import Method
from mmaccel.session import accelerate

from ..heterogeneous.heterogeneous_steps import HeterogeneousSteps
from ..heterogeneous.partial import PartialForward
from ..heterogeneous.step_solver import calibrate_steps

MODEL = "tiny-wan"
BUDGETS = (0.5, 0.25)
# Partial steps of a twentieth of the tokens cost a fifth of a full step here: with a full step every so many steps they
# fit in half the time.
INTERVAL = 3
CONVERGING = "target converged"  # its label
Setup = Any  # a method, a number of steps, or a function of the pipeline that gives a context manager


class MotionPrompt(NamedTuple):
    """A prompt with its seed, and how much moves in it."""

    seed: int
    prompt: str
    motion: str


def scenes(count: int) -> list[MotionPrompt]:
    """Half of the prompts with one thing that stays, half with two things that move."""
    still = zoo.prompts(MODEL, count // 2, seed=1, things=1, moving=0)
    lively = zoo.prompts(MODEL, count - count // 2, seed=2, things=2, moving=2)
    labelled = [*((prompt, "still") for prompt in still), *((prompt, "lively") for prompt in lively)]
    return [MotionPrompt(seed, prompt, motion) for seed, (prompt, motion) in enumerate(labelled)]


@dataclass(frozen=True)
class VideoCase:
    """One line of the benchmark.

    Attributes
    ----------
    label
        As in the table.
    kind
        ``"ours"``, ``"part"`` (ours with something left out), ``"simple"`` or ``"rival"``.
    make
        The setup at a setting.
    low, high
        Settings between which it is tuned to the time, the higher the faster; equal where it keeps a budget itself.
    told
        Its setting in words, where it is not tuned.
    package
        What has to be installed for it; empty if nothing has.
    """

    label: str
    kind: str
    make: Callable[[float], Setup]
    low: float = 1.0
    high: float = 1.0
    told: str = ""
    package: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.package) and importlib.util.find_spec(self.package) is None

    def entry(self, pipe: Any, setting: float) -> Entry:
        """Who runs at a setting; its row says what was tuned, in short."""
        setup = self.make(setting)
        if isinstance(setup, int):
            return Entry(self.label, self.kind, fewer=setup, columns={"label": f"{setup} steps"})
        if not isinstance(setup, Method):
            label = self.told or (f"threshold {setting:.3g}" if self.low < self.high else "")
            return Entry(self.label, self.kind, setup=setup, columns={"label": label})
        told = {k: v for k, v in setup.settings().items() if k in ("threshold", "interval", "fraction") and v}
        made = Entry.of(pipe, setup, self.label, self.kind)
        made.columns["label"] = ", ".join(f"{k} {v:.3g}" for k, v in told.items())
        return made


def cases(pipe: Any, steps: int, budget: float) -> Iterator[VideoCase]:
    """All of them for a budget, but for the rivals."""
    yield ours(budget)
    yield converging(budget)
    yield from _parts(budget)
    if budget == max(BUDGETS):
        yield from _partial_steps(budget)
    yield _calibrated(pipe, steps, budget)
    yield fewer_steps(steps, budget)


def ours(budget: float) -> VideoCase:
    """Our method as it comes."""
    return _fixed(budget, "HeterogeneousSteps", "ours")


def converging(budget: float) -> VideoCase:
    """Our method where the converged clip is its target."""
    return _fixed(budget, CONVERGING, "part", target="converged")


def fewer_steps(steps: int, budget: float) -> VideoCase:
    """What anyone can do."""
    return VideoCase("fewer steps", "simple", lambda _: max(1, round(steps * budget)))


def _fixed(budget: float, label: str, kind: str, **settings: Any) -> VideoCase:
    return VideoCase(label, kind, lambda _: HeterogeneousSteps(budget, **settings))


def _parts(budget: float) -> Iterator[VideoCase]:
    """Ours with something left out or put in."""
    yield _fixed(budget, "without forecast", "part", fraction=0.0, forecast=0.0)
    part, share = ("half of the forecast", 0.5) if budget == max(BUDGETS) else ("whole forecast", 1.0)
    yield _fixed(budget, part, "part", fraction=0.0, forecast=share)
    yield _fixed(budget, "without correction", "part", fraction=0.0, correct=False)
    yield _fixed(budget, "cached velocity", "part", fraction=0.0, forecast=0.0, correct=False)


def _partial_steps(budget: float) -> Iterator[VideoCase]:
    """Ours with steps that compute some of the tokens, every skipped one."""
    partial: dict[str, Any] = {"fraction": 0.05, "interval": INTERVAL}
    yield _fixed(budget, "hottest tokens", "part", **partial)
    yield _fixed(budget, "random tokens", "part", **partial, tokens="random")
    yield VideoCase(
        "hottest tokens, fresh keys", "part", lambda _: lambda pipe: accelerate(pipe, FreshKeys(budget, **partial))
    )
    yield _fixed(budget, "groups", "part", policy="groups")


def _calibrated(pipe: Any, steps: int, budget: float) -> VideoCase:
    """The best choice of steps for the plain velocities of two prompts."""
    method = calibrate_steps(pipe, zoo.prompts(MODEL, 2, seed=902), budget, num_inference_steps=steps)
    return VideoCase("calibrated steps", "part", lambda _: method)


class WholeForward(PartialForward):
    """Computes everything in what should be a partial pass."""

    def only(self, tokens: torch.Tensor, *rest: Any) -> Any:
        return self.keeping(*rest)


class FreshKeys(HeterogeneousSteps):
    """Partial steps that compute all keys and values, which costs as much as a full step: only for its quality."""

    forward: ClassVar[type[PartialForward]] = WholeForward
