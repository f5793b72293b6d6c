"""The simple alternative of a comparison: fewer steps or frames of the plain run, in about the time of a method."""

from __future__ import annotations

from .entry import Entry
from .runner import Runner
from .trial import BaseTrial


def run_beside_simple(runner: Runner, trial: BaseTrial, simple: bool) -> str:
    """Run all entries, and with `simple` the alternative in the time of each method; returns why there is none.

    It is found after the first round, catches up with it, and then takes turns with all others.
    """
    with runner.progress(runner.total + 1):
        runner.warm_up()
        runner.take_turns(0, 1)
        reason = _add(runner, trial) if simple else "it was not requested"
        runner.take_turns(1, runner.total - 1)
    return reason


def _add(runner: Runner, trial: BaseTrial) -> str:
    """Let the simple alternative catch up with the first round; returns why there is none."""
    unit, count, found = trial.unit, trial.count, {}
    if count == 1:
        return f"with one of its {unit} left out, nothing would be left"
    if count <= trial.least:
        return trial.no_simple or "this call has nothing to leave out"
    plain, *others = runner.entries
    for seconds in (other.samples[0].seconds for other in others if not other.idle):
        fewer = _as_fast(runner, trial, seconds, plain.samples[0].seconds)
        if fewer is not None:
            found[fewer] = Entry(f"fewer {unit} ({fewer} of {count})", "simple", fewer=fewer)
    if not found:
        return f"no method was faster than the plain run, so no smaller number of {unit} takes as long"
    runner.expect(runner.total * len(found))
    runner.take_turns(0, 1, list(found.values()))
    runner.entries += found.values()
    return ""


def _as_fast(runner: Runner, trial: BaseTrial, seconds: float, plain: float) -> int | None:
    """How many steps or frames take this long, on a straight line through the full count and one measured guess."""
    count, least = trial.count, trial.least
    if seconds >= plain:
        return None
    guess = min(max(round(count * seconds / plain), least), count - 1)
    runner.expect(1)
    sample, _ = runner.once(Entry("guess", "simple", fewer=guess), runner.seeds[0])
    slope = (plain - sample.seconds) / (count - guess)
    if slope <= 0:  # fewer of them are not faster
        return guess
    return min(max(round(count - (plain - seconds) / slope), least), count - 1)
