"""The runs of one comparison: who runs when, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from tqdm import tqdm

from ..bench import result as bench
from ..plan import Plan
from ..progress import looks
from ..session import Session
from .contestant import Contestant, Take
from .trial import BaseTrial

PLAIN = "plain"


class Race:
    """All runs of one comparison.

    Attributes
    ----------
    contestants
        The plain target, those that were asked for, and the simple alternatives as soon as it is known how many steps
        or frames they may have.
    no_simple
        Why there is no simple alternative; empty where there is one.
    """

    def __init__(self, trial: BaseTrial, plans: dict[str, Plan], seeds: list[int], rounds: int) -> None:
        self.trial, self.seeds = trial, seeds
        methods = [Contestant(label, "method", plan) for label, plan in plans.items()]
        self.contestants = [Contestant(PLAIN, PLAIN), *methods]
        self.total = rounds * len(seeds)
        self.no_simple = ""
        self._round = -1
        self._waiting: list[tuple[Contestant, Any]] = []
        self._plain: Any = None

    def run(self, simple: bool) -> None:
        """Warm up, and let all take turns."""
        shown = {**looks(), "desc": "compare", "unit": "runs", "delay": 0.0}  # the first run alone can take minutes
        with tqdm(total=(self.total + 1) * len(self.contestants), **shown) as self._bar:
            for contestant in self.contestants:
                self._call(contestant, self.seeds[0])
            self._take_turns(0, 1, self.contestants)
            self.no_simple = "it was not asked for" if not simple else self._add_simple()
            self._take_turns(1, self.total - 1, self.contestants)

    def _take_turns(self, first: int, rounds: int, contestants: list[Contestant]) -> None:
        def runs(contestant: Contestant) -> Callable[[int], None]:
            return lambda number: self._run(contestant, first + number)

        bench.alternate({contestant.label: runs(contestant) for contestant in contestants}, rounds)

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
                if isinstance(target, Session) and self.trial.remembers:
                    target.memory.update(contestant.memory)
                before = _start_of_memory()
                began = time.perf_counter()
                output = self.trial.run(target, seed, contestant.fewer)
                bench.synchronize()
                take = Take(seed, time.perf_counter() - began, {}, _peak_of_memory(before))
                if isinstance(target, Session):
                    take.report.update(self.trial.report(target, output))
                    contestant.memory = dict(target.memory)
        except Exception as error:
            error.add_note(f"while comparing {contestant.label}, seed {seed}")
            raise
        self._bar.update()
        return take, output

    def _expect(self, more: int) -> None:
        self._bar.total = (self._bar.total or 0) + more

    def _target(self, contestant: Contestant) -> AbstractContextManager[Any]:
        if contestant.plan is None:
            return nullcontext(self.trial.target)
        return self.trial.accelerated(contestant.plan)

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
        if count == 1:
            return f"with one of its {unit} left out, nothing would be left"
        if count <= self.trial.least:
            return self.trial.no_simple or "this call has nothing to leave out"
        plain, *others = self.contestants
        for seconds in (other.takes[0].seconds for other in others if not other.idle):
            fewer = self._as_fast(seconds, plain.takes[0].seconds)
            if fewer is not None:
                found[fewer] = Contestant(f"fewer {unit} ({fewer} of {count})", "simple", fewer=fewer)
        if not found:
            return f"no method was faster than the plain run, so that no fewer {unit} take as long"
        self._expect(self.total * len(found))
        self._take_turns(0, 1, list(found.values()))
        self.contestants += found.values()
        return ""

    def _as_fast(self, seconds: float, plain: float) -> int | None:
        """How many steps or frames take about as long: a straight line through all of them and one guess."""
        count, least = self.trial.count, self.trial.least
        if seconds >= plain:
            return None
        guess = min(max(round(count * seconds / plain), least), count - 1)
        trying = Contestant("guess", "simple", fewer=guess)
        self._expect(1)
        slope = (plain - self._call(trying, self.seeds[0])[0].seconds) / (count - guess)
        if slope <= 0:  # fewer are no faster
            return guess
        return min(max(round(count - (plain - seconds) / slope), least), count - 1)


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
