"""Compare: a target beside itself with methods, on the same seeds, and beside what anyone could do instead."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from tqdm import tqdm

from . import bench
from .adapter import find_adapter
from .comparing import BaseTrial, trial_of
from .comparison import Comparison
from .contestant import Contestant, Take
from .errors import ConflictError, SettingError
from .method import Method, is_count
from .plan import Plan, plan
from .session import Session, accelerate

LEAST_RUNS = 3  # of each contestant, so that there is a median
PLAIN = "plain"


def compare(
    target: Any,
    *methods: Method | Plan | tuple[Method, ...],
    preset: str | None = None,
    seeds: Iterable[int] = (0,),
    rounds: int | None = None,
    simple: bool = True,
    processor: Any = None,
    **inputs: Any,
) -> Comparison:
    """Run a target plainly and with each method on the same seeds, and put speed, quality and memory side by side.

    Every contestant has one run that is discarded. Then they take turns, in an order that changes, and the speed-up
    is the median of the ratios within a round. Beside them runs the simple alternative, at about the time of each
    method: fewer steps of a diffusion pipeline, fewer frames for a model that looks at a video. What is shown is the
    worst seed.

    Parameters
    ----------
    target
        A transformers model or diffusers pipeline.
    *methods
        Each is a contestant; a plan or a tuple of methods is one of several methods together.
    preset
        ``"exact"``, ``"balanced"`` or ``"fast"``: one more contestant.
    seeds
        Default one, 0. The more seeds, the worse is the worst of them.
    rounds
        Runs of each seed; default as many as give every contestant at least 3 runs.
    simple
        Whether the simple alternative runs too (default True).
    processor
        What turns the tokens of an answer into words; for vision-language models also what prepares `frames` and
        `questions`, if these are given instead of a call's own arguments.
    **inputs
        Arguments of the target's own call: those of `generate`, or of the pipeline. Without `generator`.

    Raises
    ------
    SettingError, ConflictError, UnknownNameError, UnsupportedTargetError
        Before anything runs.

    Examples
    --------
    >>> import mmaccel
    >>> from mmaccel import video, zoo
    >>> pipe = zoo.load("tiny-wan")
    >>> found = mmaccel.compare(
    ...     pipe, video.HeterogeneousSteps(0.5), prompt="rocket moves up", seeds=range(4)
    ... )  # doctest: +SKIP
    >>> found.save("rocket.html")  # doctest: +SKIP
    """
    numbers = _checked(seeds, rounds)
    contestants = _contestants(target, methods, preset)
    trial = trial_of(find_adapter(target), inputs, processor)
    race = Race(trial, contestants, numbers, rounds or math.ceil(LEAST_RUNS / len(numbers)))
    race.run(simple)
    return Comparison.of(trial, race.contestants, numbers, race.no_simple)


def _checked(seeds: Iterable[int], rounds: int | None) -> list[int]:
    try:
        numbers = list(seeds)
    except TypeError as error:
        raise SettingError(f"seeds={seeds!r}: give several numbers, such as seeds=range(4)") from error
    if not numbers:
        raise SettingError("seeds is empty: give at least one number, such as seeds=range(4)")
    if not all(is_count(seed, 0) for seed in numbers) or len(set(numbers)) < len(numbers):
        raise SettingError(f"seeds={numbers!r}: they must be different integers of at least 0, such as seeds=range(4)")
    if rounds is not None and not is_count(rounds):
        raise SettingError(f"rounds={rounds!r}: it must be an integer of at least 1")
    return numbers


def _contestants(target: Any, methods: tuple[Any, ...], preset: str | None) -> list[Contestant]:
    """The plain target and all that was asked for, resolved and checked."""
    plans = [plan(target, *(item if isinstance(item, tuple) else (item,))) for item in methods]
    if preset is not None or not plans:
        plans.append(plan(target, preset=preset))
    found = [Contestant(PLAIN, PLAIN)]
    for made in plans:
        label = " + ".join(str(method) for method in made.methods)
        if any(label == other.label for other in found):
            raise ConflictError(f"{label} is there twice: name it once")
        found.append(Contestant(label, "method", made))
    return found


class Race:
    """All runs of one comparison.

    Attributes
    ----------
    contestants
        Those that were asked for, and the simple alternatives as soon as it is known how many steps or frames they
        may have.
    no_simple
        Why there is no simple alternative; empty where there is one.
    """

    def __init__(self, trial: BaseTrial, contestants: list[Contestant], seeds: list[int], rounds: int) -> None:
        self.trial, self.contestants, self.seeds = trial, contestants, seeds
        self.total = rounds * len(seeds)
        self.no_simple = ""
        self._round = -1
        self._waiting: list[tuple[Contestant, Any]] = []
        self._plain: Any = None

    def run(self, simple: bool) -> None:
        """Warm up, and let all take turns."""
        with tqdm(total=(self.total + 1) * len(self.contestants), desc="compare", disable=None) as self._bar:
            for contestant in self.contestants:
                self._call(contestant, self.seeds[0])
            self._take_turns(0, 1, self.contestants)
            self.no_simple = "it was not asked for" if not simple else self._add_simple()
            self._take_turns(1, self.total - 1, self.contestants)

    def _take_turns(self, first: int, rounds: int, contestants: list[Contestant]) -> None:
        runs = {c.label: lambda number, c=c: self._run(c, first + number) for c in contestants}
        bench.alternate(runs, rounds)

    def _run(self, contestant: Contestant, number: int) -> None:
        seed = self.seeds[number % len(self.seeds)]
        take, output = self._call(contestant, seed)
        contestant.takes.append(take)
        if number < len(self.seeds):  # later rounds repeat the outputs
            self._judge(contestant, number, output)

    def _call(self, contestant: Contestant, seed: int) -> tuple[Take, Any]:
        """One run; putting methods on and taking them off is not timed."""
        try:
            with self._target(contestant) as target:
                if isinstance(target, Session):
                    target.memory.update(contestant.memory)
                before = _start_of_memory()
                began = time.perf_counter()
                output = self.trial.run(target, seed, contestant.fewer)
                bench.synchronize()
                take = Take(seed, time.perf_counter() - began, {}, _peak_of_memory(before))
                if isinstance(target, Session):
                    take.report.update(target.report.to_dict(), warnings=list(target.report.warnings))
                    contestant.memory = dict(target.memory)
        except Exception as error:
            error.add_note(f"while comparing {contestant.label}, seed {seed}")
            raise
        self._bar.update()
        return take, output

    def _target(self, contestant: Contestant) -> AbstractContextManager[Any]:
        if contestant.plan is None:
            return nullcontext(self.trial.target)
        return accelerate(self.trial.target, contestant.plan)

    def _judge(self, contestant: Contestant, number: int, output: Any) -> None:
        """Judge what waits for the plain output of a seed; only the worst pairs are kept."""
        if number != self._round:
            self._round, self._plain, self._waiting = number, None, []
        self._waiting.append((contestant, output))
        if contestant.kind == PLAIN:
            self._plain = output
        if self._plain is not None:
            for other, waiting in self._waiting:
                other.judged(self.trial, self.seeds[number], self._plain, waiting)
            self._waiting = []

    def _add_simple(self) -> str:
        """Let the simple alternative catch up with the first round; says why there is none."""
        unit, count, found = self.trial.unit, self.trial.count, {}
        if count < 2:
            return self.trial.no_simple or "this call has nothing to leave out"
        plain, *others = self.contestants
        for seconds in (other.takes[0].seconds for other in others if not other.idle):
            fewer = self._as_fast(seconds, plain.takes[0].seconds)
            if fewer is not None:
                found[fewer] = Contestant(f"fewer {unit} ({fewer} of {count})", "simple", fewer=fewer)
        if not found:
            return f"no method was faster than the plain run, so that no fewer {unit} take as long"
        self._bar.total += self.total * len(found)
        self._take_turns(0, 1, list(found.values()))
        self.contestants += found.values()
        return ""

    def _as_fast(self, seconds: float, plain: float) -> int | None:
        """How many steps or frames take about as long: a straight line through all of them and one guess."""
        count = self.trial.count
        if seconds >= plain:
            return None
        guess = min(max(round(count * seconds / plain), 1), count - 1)
        trying = Contestant("guess", "simple", fewer=guess)
        self._bar.total += 1
        slope = (plain - self._call(trying, self.seeds[0])[0].seconds) / (count - guess)
        if slope <= 0:  # fewer are no faster
            return guess
        return min(max(round(count - (plain - seconds) / slope), 1), count - 1)


def _start_of_memory() -> int:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak_of_memory(before: int) -> int | None:
    """Bytes that a run took at its fullest, None where nobody counts them."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return torch.cuda.max_memory_allocated() - before
