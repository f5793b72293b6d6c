"""The simple alternative of a comparison: fewer steps or frames of the plain run, in about the time of a method."""

from __future__ import annotations

from .entry import Entry
from .runner import Runner
from .trial import BaseTrial


def run_beside_simple(runner: Runner, trial: BaseTrial, simple: bool) -> str:
    """Run all entries, and with `simple` the alternative in the time of each method; returns why there is none.

    It is found after the first round, catches up with it, and then takes turns with all others.
    """
    with runner.progress(len(runner.runs) + 1):
        runner.ranks.gathered(lambda: _first(runner))
        reason, counts = "it was not requested", list[int]()
        if simple:
            reason, counts = runner.ranks.of_first(lambda: _counts(runner, trial))
        more = [Entry(f"fewer {trial.unit} ({each} of {trial.count})", "simple", fewer=each) for each in counts]
        runner.ranks.gathered(lambda: _rest(runner, more))
    runner.gather()
    return reason


def _first(runner: Runner) -> None:
    runner.warm_up()
    runner.take_turns(runner.runs[:1])


def _rest(runner: Runner, more: list[Entry]) -> None:
    """The simple alternatives warm up and catch up with the first run, and then take turns with all others."""
    if more:
        runner.expect((1 + len(runner.runs)) * len(more))
        runner.warm_up(more)
        runner.take_turns(runner.runs[:1], more)
        runner.entries += more
    runner.take_turns(runner.runs[1:])


def _counts(runner: Runner, trial: BaseTrial) -> tuple[str, list[int]]:
    """How many steps or frames the simple alternatives have, each once; or why there are none."""
    unit, count = trial.unit, trial.count
    if count == 1:
        return f"with one of its {unit} left out, nothing would be left", []
    if count <= trial.least:
        return trial.no_simple or "this call has nothing to leave out", []
    plain, *others = runner.entries
    seconds = (other.samples[0].seconds for other in others if not other.idle)
    found = [_as_fast(runner, trial, each, plain.samples[0].seconds) for each in seconds]
    fewer = list(dict.fromkeys(each for each in found if each is not None))
    if not fewer:
        return f"no method was faster than the plain run, so no smaller number of {unit} takes as long", []
    return "", fewer


def _as_fast(runner: Runner, trial: BaseTrial, seconds: float, plain: float) -> int | None:
    """How many steps or frames take this long, on a straight line through the full count and one measured guess."""
    count, least = trial.count, trial.least
    if seconds >= plain:
        return None
    guess = min(max(round(count * seconds / plain), least), count - 1)
    entry = Entry("guess", "simple", fewer=guess)
    runner.expect(2)
    runner.warm_up([entry])
    sample, _ = runner.once(entry, runner.seeds[0])
    slope = (plain - sample.seconds) / (count - guess)
    if slope <= 0:  # fewer of them are not faster
        return guess
    return min(max(round(count - (plain - seconds) / slope), least), count - 1)
