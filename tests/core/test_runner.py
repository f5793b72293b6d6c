"""Who runs when, with what it learned, and what is kept of it; by a clock that is made up."""

from types import SimpleNamespace
from typing import ClassVar

import pytest

from mmaccel.comparison import runner
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.simple import run_beside_simple
from mmaccel.comparison.trial import BaseTrial, Metric
from mmaccel.image import SpeculativeJacobi, ZipAR
from mmaccel.plan import Plan
from mmaccel.session import Session

FAST, SLOW = "fast", "slow"
PLANS = {FAST: Plan((SpeculativeJacobi(),), "janus"), SLOW: Plan((ZipAR(window=2),), "janus")}


class FakeSession(Session):
    """A session of a label, without a model."""

    def __init__(self, label):
        self.label, self.memory, self.report, self._removed = label, {}, None, False

    def __exit__(self, *_):
        pass


class Trial(BaseTrial):
    """Each run takes the seconds of its kind, and notes who ran with what."""

    adapter = SimpleNamespace(modality="image")
    unit, least, no_simple, remembers, draws = "steps", 1, "", True, False
    metrics = (Metric("far", "far", "the distance"),)

    def __init__(self, clock, seconds, count=10, **changes):
        self.clock, self.timer, self.seconds = clock, lambda: clock.now, seconds
        self.count, self.target = count, SimpleNamespace(label="plain")
        self.calls, self.judged, self.memories = [], [], []
        vars(self).update(changes)

    def accelerated(self, plan):
        return FakeSession(self.labels[id(plan)])

    def show(self, output):
        raise AssertionError("nobody looks")

    def run(self, target, seed, fewer=None):
        self.calls.append((target.label if fewer is None else fewer, seed))
        if isinstance(target, Session):
            self.memories.append((target.label, dict(target.memory)))
            target.memory["runs"] = target.memory.get("runs", 0) + 1
        self.clock.now += self.seconds(target.label if fewer is None else fewer)
        return self.calls[-1]

    def report(self, session, output):
        return {"engaged": session.label != "idle", "work_ratio": 1.0 if session.label == "idle" else 0.5}

    def equal(self, one, other):
        return one == other

    def judge(self, plain, other):
        self.judged.append((plain, other))
        return {"far": 0.0}


@pytest.fixture
def ran():
    def run(seconds, seeds=(5,), rounds=3, simple=True, plans=PLANS, **changes):
        clock = SimpleNamespace(now=0.0)
        trial = Trial(clock, seconds, **changes)
        trial.labels = {id(plan): label for label, plan in plans.items()}
        entries = [Entry(PLAIN, PLAIN), *(Entry(label, "method", plan) for label, plan in plans.items())]
        made = Runner(trial, entries, seeds, rounds)
        made.no_simple = run_beside_simple(made, trial, simple)
        return made, trial

    return run


def by_step(plain=10.0, fast=4.0, slow=20.0, begin=0.0):
    """Seconds of a run: a constant and a share of each of ten steps."""
    each = (plain - begin) / 10
    return lambda who: {"plain": plain, FAST: fast, SLOW: slow, "idle": plain}.get(who) or begin + who * each


def test_all_take_turns_after_one_run_that_is_discarded(ran):
    made, trial = ran(by_step(), seeds=(5, 6), rounds=2, simple=False)
    names = ["plain", FAST, SLOW]
    turns = [names, names, names[1:] + names[:1], names[2:] + names[:2]]  # the first round comes by itself
    expected = [(name, 5) for name in names]
    for seed, order in zip((5, 6, 5, 6), turns, strict=True):
        expected += [(name, seed) for name in order]
    assert trial.calls == expected
    assert [len(each.samples) for each in made.entries] == [4, 4, 4]
    assert [sample.seed for sample in made.entries[0].samples] == [5, 6, 5, 6]
    assert {sample.seconds for sample in made.entries[1].samples} == {4.0}
    assert made.no_simple == "it was not requested"


def test_each_seed_is_judged_once_beside_the_plain_output_of_that_seed(ran):
    made, trial = ran(by_step(), seeds=(5, 6, 7), rounds=2)  # in the third round the plain run is not the first
    labels = {"plain", FAST, SLOW, 4}
    assert sorted(map(str, trial.judged)) == sorted(
        str((("plain", seed), (label, seed))) for label in labels for seed in (5, 6, 7)
    )
    assert all(set(each.metrics) == {5, 6, 7} for each in made.entries)


@pytest.mark.parametrize("remembers", (True, False))
def test_a_session_begins_with_what_the_last_one_of_its_entry_learned(ran, remembers):
    _, trial = ran(by_step(), simple=False, remembers=remembers)
    for label in (FAST, SLOW):
        found = [memory for name, memory in trial.memories if name == label]
        assert found == ([{}, {"runs": 1}, {"runs": 2}, {"runs": 3}] if remembers else [{}] * 4)


@pytest.mark.parametrize(
    ("seconds", "fewer"),
    (
        (by_step(), 4),  # as many as take as long
        (by_step(fast=6.0, begin=2.0), 5),  # with a beginning that cannot be left out: 2 s, and 0.8 s a step
        (by_step(fast=0.1), 2),  # not below the least
        (by_step(fast=9.9), 9),  # not all of them
        (lambda who: {FAST: 4.0, SLOW: 20.0}.get(who, 10.0), 4),  # fewer are no faster: the guess
    ),
    ids=("straight", "beginning", "least", "most", "flat"),
)
def test_the_simple_alternative_takes_about_as_long(ran, seconds, fewer):
    made, trial = ran(seconds, least=2)
    (simple,) = (each for each in made.entries if each.kind == "simple")
    assert simple.fewer == fewer and simple.label == f"fewer steps ({fewer} of 10)" and not simple.exact
    assert len(simple.samples) == 3 and made.no_simple == "", "it catches up with the first round"
    assert trial.calls.count((fewer, 5)) >= 3


def test_the_first_run_of_the_simple_alternative_is_discarded_too(ran):
    met, usual = set(), by_step(fast=6.0, begin=2.0)

    def slow_at_first(who):
        cold = who not in met
        met.add(who)
        return usual(who) + 5.0 * cold

    made, _ = ran(slow_at_first)
    (simple,) = (each for each in made.entries if each.kind == "simple")
    assert simple.fewer == 5 and simple.seconds == [6.0] * 3


def test_methods_of_one_speed_share_a_simple_alternative(ran):
    made, _ = ran(by_step(slow=4.0))
    assert [each.fewer for each in made.entries if each.kind == "simple"] == [4]
    made, _ = ran(by_step(slow=7.0))
    assert [each.fewer for each in made.entries if each.kind == "simple"] == [4, 7]


@pytest.mark.parametrize(
    ("more", "why"),
    (
        ({"count": 1}, "with one of its steps left out, nothing would be left"),
        ({"count": 3, "least": 3}, "this call has nothing to leave out"),
        ({"count": 0, "no_simple": "sigmas= is given"}, "sigmas= is given"),
        ({"seconds": by_step(fast=10.0)}, "no method was faster than the plain run"),
        (
            {"plans": {"idle": PLANS[FAST]}, "seconds": lambda who: 1.0 if who == "idle" else 10.0},
            "no method was faster",
        ),
    ),
)
def test_why_there_is_no_simple_alternative(ran, more, why):
    made, _ = ran(**{"seconds": by_step(), **more})
    assert made.no_simple.startswith(why) and all(each.kind != "simple" for each in made.entries)


def test_an_error_names_entry_and_seed(ran):
    def seconds(who):
        if who == FAST:
            raise RuntimeError("broken")
        return 1.0

    with pytest.raises(RuntimeError) as error:
        ran(seconds)
    assert error.value.__notes__ == ["while comparing fast, seed 5"]


class Bar:
    """A progress bar that is only counted."""

    made: ClassVar[list] = []

    def __init__(self, total, **looks):
        self.total, self.looks, self.count = total, looks, 0
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self):
        self.count += 1


@pytest.mark.parametrize("simple", (True, False))
def test_the_bar_ends_at_its_total(ran, monkeypatch, simple):
    monkeypatch.setattr(runner, "tqdm", Bar)
    monkeypatch.setattr(Bar, "made", [])
    _, trial = ran(by_step(begin=2.0), seeds=(5, 6), rounds=2, simple=simple)
    (bar,) = Bar.made
    assert bar.total == bar.count == len(trial.calls) == 3 * (1 + 4) + (2 + 1 + 4) * simple
    assert bar.looks["disable"] and bar.looks["unit"] == "runs", "without a title there is none"


def test_the_bar_has_the_title_and_counts_no_warm_up_that_is_left_out(monkeypatch):
    monkeypatch.setattr(runner, "tqdm", Bar)
    monkeypatch.setattr(Bar, "made", [])
    for warm_up in (True, False):
        trial = Trial(SimpleNamespace(now=0.0), by_step())
        Runner(trial, [Entry(PLAIN, PLAIN)], (5, 6), 3, title="compare").run(warm_up=warm_up)
        bar = Bar.made[-1]
        assert bar.total == bar.count == len(trial.calls) == 6 + warm_up
        assert bar.looks["desc"] == "compare" and not bar.looks["disable"] and bar.looks["delay"] == 0


def test_the_accelerator_is_waited_for_before_each_look_at_the_clock(monkeypatch):
    order = []
    monkeypatch.setattr(runner, "synchronize", lambda: order.append("wait"))
    trial = Trial(SimpleNamespace(now=0.0), lambda who: order.append("run") or 1.0)
    trial.timer = lambda: order.append("look") or trial.clock.now
    Runner(trial, [Entry(PLAIN, PLAIN)], (5,)).run(warm_up=False)
    assert order == ["wait", "look", "run", "wait", "look"]


def test_an_entry_keeps_the_peak_of_its_runs(monkeypatch):
    monkeypatch.setattr(runner, "_start_of_memory", lambda: 40)
    monkeypatch.setattr(runner, "_peak_of_memory", lambda before: 100 - before)
    made = Runner(Trial(SimpleNamespace(now=0.0), by_step()), [Entry(PLAIN, PLAIN)], (5,)).run()
    assert [sample.peak_bytes for sample in made.entries[0].samples] == [60]


def test_memory_is_that_of_all_accelerators_in_use(monkeypatch):
    reset = []
    for name, function in (
        ("reset_peak_memory_stats", reset.append),
        ("memory_allocated", {0: 0, 1: 40}.get),
        ("max_memory_allocated", {0: 3, 1: 100}.get),
    ):
        monkeypatch.setattr(runner.torch.cuda, name, function)
    monkeypatch.setattr(runner, "used_devices", lambda: [0, 1])
    before = runner._start_of_memory()
    assert (before, reset, runner._peak_of_memory(before)) == (40, [0, 1], 63)
    monkeypatch.setattr(runner, "used_devices", list)
    assert runner._start_of_memory() == 0 and runner._peak_of_memory(0) is None
