"""The one measuring loop, under `compare`, `tune` and every benchmark: entries take turns, and samples are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self, TypeVar

import torch
from tqdm import tqdm

from ..machine import synchronize, used_devices
from ..progress import looks
from ..session import Session
from .entry import PLAIN, Entry, Sample
from .ranks import Ranks
from .trial import Workload

T = TypeVar("T")


class Runner:
    """Runs entries in turns; the order rotates with every round, so that drift of the machine affects all alike.

    Parameters
    ----------
    trial
        The call that all entries make.
    entries
        They take turns. Outputs are compared with that of the first entry of kind ``"plain"``, if there is one.
    seeds
        Each entry runs once per seed, and the outputs of these runs are judged.
    rounds
        How often all seeds are repeated; later rounds only measure time.
    title
        Title of the progress bar; empty for no bar.
    ranks
        Processes that share the runs; by default this one makes all.

    Attributes
    ----------
    runs
        The numbers of the runs that this process makes.
    """

    def __init__(
        self,
        trial: Workload,
        entries: Sequence[Entry],
        seeds: Sequence[int],
        rounds: int = 1,
        title: str = "",
        ranks: Ranks | None = None,
    ) -> None:
        self.trial, self.entries, self.seeds, self.title = trial, list(entries), list(seeds), title
        self.ranks = ranks or Ranks()
        self.ranks.check(rounds * len(self.seeds))
        self.runs = self.ranks.mine(range(rounds * len(self.seeds)))
        self._bar: Any = None
        self._round = -1
        self._waiting: list[tuple[Entry, Any]] = []
        self._plain: Any = None

    def run(self, warm_up: bool = True) -> Self:
        """Make all runs; by default each entry first has one that is discarded."""
        with self.progress(len(self.runs) + warm_up):
            if warm_up:
                self.warm_up()
            self.take_turns(self.runs)
        return self

    @contextmanager
    def progress(self, runs: int) -> Iterator[None]:
        """Show progress over this many runs of each entry inside the block."""
        # without a delay: the first run alone can take minutes
        silent = not self.title or self.ranks.rank > 0
        shown = {**looks(), "desc": self.title, "unit": "runs", "delay": 0.0, "disable": silent}
        with tqdm(total=runs * len(self.entries), **shown) as self._bar:
            yield

    def expect(self, more: int) -> None:
        """Add this many runs to the progress bar."""
        self._bar.total = (self._bar.total or 0) + more

    def warm_up(self, entries: Sequence[Entry] | None = None) -> None:
        """Make one discarded run of all entries or of some, of which only what its session learned is kept."""
        for entry in self.entries if entries is None else entries:
            self.once(entry, self.seeds[0])

    def take_turns(self, runs: Sequence[int], entries: Sequence[Entry] | None = None) -> None:
        """Runs of these numbers, of all entries or of some."""
        running = self.entries if entries is None else list(entries)
        for turn, number in enumerate(runs):
            for entry in turned(running, turn):
                self._run(entry, number)

    def gather(self) -> None:
        """Put what all processes measured together."""
        if self.ranks.count > 1:
            found = self.ranks.gathered(lambda: [entry.measured for entry in self.entries])
            for entry, *parts in zip(self.entries, *found, strict=True):
                entry.join(self.trial, self.seeds, parts)

    def once(self, entry: Entry, seed: int) -> tuple[Sample, Any]:
        """Make one run and return it with its output; attaching and removing methods is not timed."""
        try:
            with self._target(entry) as target:
                if isinstance(target, Session) and self.trial.remembers:
                    target.memory.update(entry.memory)
                before = _start_of_memory()
                synchronize()
                began = self.trial.timer()
                output = self.trial.run(target, seed, entry.fewer)
                synchronize()
                sample = Sample(seed, self.trial.timer() - began, {}, _peak_of_memory(before))
                if isinstance(target, Session):
                    sample.report.update(self.trial.report(target, output))
                    entry.memory = dict(target.memory)
        except Exception as error:
            error.add_note(f"while comparing {entry.label}, seed {seed}")
            raise
        if self._bar is not None:
            self._bar.update()
        return sample, output

    def _run(self, entry: Entry, number: int) -> None:
        seed = self.seeds[number % len(self.seeds)]
        sample, output = self.once(entry, seed)
        entry.samples.append(sample)
        if number < len(self.seeds):  # later rounds repeat the outputs
            self._judge(entry, number, output)

    def _target(self, entry: Entry) -> AbstractContextManager[Any]:
        if entry.setup is not None:
            return entry.setup(self.trial.target)
        return nullcontext(self.trial.target) if entry.plan is None else self.trial.accelerated(entry.plan)

    def _judge(self, entry: Entry, number: int, output: Any) -> None:
        """Judge the outputs that wait for the plain output of a seed; only the worst pairs are kept."""
        if number != self._round:
            self._round, self._plain, self._waiting = number, None, []
        self._waiting.append((entry, output))
        if entry.kind == PLAIN:
            self._plain = output
        if self._plain is not None:
            for other, waiting in self._waiting:
                other.judged(self.trial, self.seeds[number], self._plain, waiting)
            self._waiting = []


def turned(some: list[T], turn: int) -> list[T]:
    """A list that begins elsewhere at each turn.

    Examples
    --------
    >>> turned(["a", "b", "c"], 4)
    ['b', 'c', 'a']
    """
    start = turn % len(some)
    return some[start:] + some[:start]


def _start_of_memory() -> int:
    devices = used_devices()
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    return sum(map(torch.cuda.memory_allocated, devices))


def _peak_of_memory(before: int) -> int | None:
    """Peak memory of a run in bytes, over all accelerators; None where it is not counted."""
    devices = used_devices()
    return sum(map(torch.cuda.max_memory_allocated, devices)) - before if devices else None
