"""Every registered method keeps the contract of `mmaccel.testing.contract`: all of it where ``MMACCEL_FULL=1``."""

import os
from dataclasses import dataclass, replace

import pytest
import torch

import mmaccel
from mmaccel import session as session_module
from mmaccel.errors import UnknownNameError
from mmaccel.image import SpeculativeJacobi, ZipAR
from mmaccel.method import Method
from mmaccel.patching import override
from mmaccel.report import Report
from mmaccel.session import Session
from mmaccel.speech import SuffixDraft
from mmaccel.testing import contract as testing
from mmaccel.testing.contract import Interrupted
from mmaccel.video.heterogeneous import auto


@pytest.mark.parametrize("name", mmaccel.methods())
def test_contract(name, monkeypatch):
    monkeypatch.setattr(auto, "ROUNDS", 1)  # of settings that it measures in each session: test_auto.py has them all
    monkeypatch.setattr(auto, "THRESHOLDS", auto.THRESHOLDS[-1:])
    testing.check_method(mmaccel.get_method(name), thorough=os.environ.get("MMACCEL_FULL") == "1")


# The contract itself must be able to fail.


def test_contract_sees_a_trace(monkeypatch):
    """A method that leaves an attribute behind."""
    example = testing.examples("image")[0]
    attach = ZipAR.attach

    def leaky(self, session, stack):
        attach(self, session, stack)
        session.target.left_behind = True

    monkeypatch.setattr(ZipAR, "attach", leaky)
    with pytest.raises(AssertionError, match="left a trace"):
        testing.engaged_and_clean(ZipAR, example)


def test_contract_sees_the_global_random_state(monkeypatch):
    decode = SpeculativeJacobi.decode

    def careless(self, task, generator, progress, session):
        torch.rand(1)
        return decode(self, task, generator, progress, session)

    monkeypatch.setattr(SpeculativeJacobi, "decode", careless)
    with pytest.raises(AssertionError, match="global random state"):
        testing.seeded(SpeculativeJacobi, testing.examples("image")[0])


def test_contract_sees_a_false_neutral_setting(monkeypatch):
    monkeypatch.setattr(ZipAR, "neutral", {"window": 1})
    with pytest.raises(AssertionError, match="neutral settings"):
        testing.neutral(ZipAR, testing.examples("image")[0])


def test_contract_sees_a_method_that_does_nothing(monkeypatch):
    monkeypatch.setattr(SpeculativeJacobi, "engaging", {"window": 1})
    with pytest.raises(AssertionError, match="did not engage"):
        testing.engaged_and_clean(SpeculativeJacobi, testing.examples("image")[0])


JANUS = testing.examples("image")[0]
CLAUSES = testing.CLAUSES + testing.OF_SESSIONS


@pytest.fixture
def spoil(monkeypatch):
    """Puts a function between ZipAR and its caller: `spoiled(session, generate, *args, **kwargs)`."""

    def use(spoiled):
        attach = ZipAR.attach

        def careless(self, session, stack):
            attach(self, session, stack)
            generate = session.target.generate
            override(stack, session.target, "generate", lambda *a, **k: spoiled(session, generate, *a, **k))

        monkeypatch.setattr(ZipAR, "attach", careless)

    return use


def fails(clause, word, method=ZipAR, example=JANUS):
    with pytest.raises(AssertionError, match=word):
        clause(method, example)


def other_tokens(out):
    return (out + 1) % 16


# What a run gives, and what its report says of it


def test_contract_sees_another_shape(spoil):
    spoil(lambda session, generate, *a, **k: generate(*a, **k)[:, :-1])
    fails(testing.engaged_and_clean, r"shape \(1, 15\) instead of \(1, 16\)")


def test_contract_sees_a_method_that_only_says_that_it_engaged(spoil, monkeypatch):
    def same(session, generate, *args, generator=None, **kwargs):
        torch.manual_seed(0)
        out = generate(*args, **kwargs)
        session.report.engaged = True
        return out

    monkeypatch.setattr(ZipAR, "engaging", {"window": JANUS.columns})
    spoil(same)
    fails(testing.engaged_and_clean, "no less work, and the same output")


@pytest.mark.parametrize(
    ("change", "word"),
    (
        (lambda report: setattr(report, "wall_seconds", 0.0), "report is not filled"),
        (lambda report: setattr(report, "details", {"x": {1}}), "not JSON serializable"),
    ),
)
def test_contract_sees_a_report_that_is_not_filled(spoil, change, word):
    def unfilled(session, generate, *args, **kwargs):
        out = generate(*args, **kwargs)
        change(session.report)
        return out

    spoil(unfilled)
    with pytest.raises((AssertionError, TypeError), match=word):
        testing.engaged_and_clean(ZipAR, JANUS)


def test_contract_sees_a_report_that_says_too_much_or_too_little(spoil, monkeypatch):
    def warned(session, generate, *args, **kwargs):
        out = generate(*args, **kwargs)
        session.report.warnings += ["first", "last"]
        return out

    spoil(warned)
    testing.engaged_and_clean(ZipAR, JANUS)
    figures = Report._figures
    with monkeypatch.context() as patch:
        patch.setattr(Report, "_figures", lambda self: [*figures(self), "one", "two", "three", "four"])
        fails(testing.engaged_and_clean, "more than 8 lines of figures")
    monkeypatch.setattr(Report, "told", lambda self: self.warnings[:1])
    fails(testing.engaged_and_clean, "a warning is left out")


# What stays behind


def test_contract_sees_a_model_that_gives_other_tokens_afterwards(spoil):
    """Also if nothing that a snapshot holds has changed."""
    dial = [0]

    def build(seed=0):
        model, arguments = JANUS.build(seed)
        generate = model.generate
        model.generate = lambda *a, **k: (generate(*a, **k) + dial[0]) % 16
        return model, arguments

    def turned(session, generate, *args, **kwargs):
        dial[0] = 1
        return generate(*args, **kwargs)

    spoil(turned)
    fails(testing.engaged_and_clean, "gives other tokens than before", example=replace(JANUS, build=build))


def test_what_the_plain_model_gives_is_found_once():
    """For all methods that are held against it."""
    builds = []

    def build(seed=0):
        builds.append(seed)
        return JANUS.build(seed)

    example = replace(JANUS, build=build)
    for method in (ZipAR, SpeculativeJacobi):
        testing.neutral(method, example)
    assert len(builds) == 2 and testing.examples("image")[0] is JANUS


# Each of the other clauses


def test_contract_sees_seeds_that_change_nothing_or_too_much(spoil):
    calls = []

    def drifting(session, generate, *args, **kwargs):
        calls.append(1)
        out = generate(*args, **kwargs)
        return other_tokens(out) if len(calls) % 2 else out

    spoil(drifting)
    fails(testing.seeded, "the same seed gave another output")


@pytest.mark.parametrize(
    ("cut", "variants"), ((lambda out: out[:1], ()), (lambda out: out[:, :-1], ({},))), ids=("rows", "tokens")
)
def test_contract_sees_lost_shapes(spoil, cut, variants):
    spoil(lambda session, generate, *a, **k: cut(generate(*a, **k)))
    fails(testing.shapes, "shapes", example=replace(JANUS, variants=variants))


def interrupted(after):
    """A method that answers an exception half-way in a way of its own."""

    def run(session, generate, *args, **kwargs):
        try:
            out = generate(*args, **kwargs)
        except Interrupted:
            return after(session)
        return other_tokens(out) if session.memory.get("damaged") else out

    return run


def again(session, change):
    change(session)
    raise Interrupted


@pytest.mark.parametrize(
    ("after", "word"),
    (
        (lambda session: torch.zeros(1, 16), "the hook never fired"),
        (lambda session: again(session, lambda s: s.memory.update(damaged=True)), "the session is damaged"),
        (lambda session: again(session, lambda s: setattr(s.target, "left", 1)), "left a trace"),
        (lambda session: again(session, lambda s: s.target.dial.append(1)), "gives other tokens than before"),
    ),
    ids=("swallowed", "session", "trace", "model"),
)
def test_contract_sees_what_an_exception_leaves(spoil, after, word):
    def build(seed=0):
        model, arguments = JANUS.build(seed)
        model.dial, generate = [], model.generate
        model.generate = lambda *a, **k: (generate(*a, **k) + len(model.dial)) % 16
        return model, arguments

    spoil(interrupted(after))
    fails(testing.exception, word, example=replace(JANUS, build=build))


def test_contract_sees_two_sessions_that_feel_each_other(spoil):
    sessions = []

    def shared(session, generate, *args, **kwargs):
        sessions.append(session)
        out = generate(*args, **kwargs)
        return out if len(set(map(id, sessions))) == 1 else other_tokens(out)

    spoil(shared)
    fails(testing.two_instances, "another session had an effect")


def test_contract_sees_a_second_session_on_one_target(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Session, "__str__", lambda self: "somebody")
        fails(testing.two_instances, "does not name the live session")

    class Forgetful(dict):
        def get(self, key, default=None):
            return None

    monkeypatch.setattr(session_module, "_holders", Forgetful())
    fails(testing.two_instances, "a second session on one target was allowed")


def test_contract_sees_a_plan_that_forgets(monkeypatch):
    monkeypatch.setattr(ZipAR, "settings", lambda self: {"verify": self.verify})
    fails(testing.plans, "a plan is lost in JSON")


@pytest.mark.parametrize(
    ("change", "word"), ((other_tokens, "does something else"), (lambda out: out[:, :-1], "gives another shape"))
)
def test_contract_sees_a_saved_plan_that_does_something_else(spoil, change, word):
    runs = []

    def second(session, generate, *args, **kwargs):
        runs.append(1)
        out = generate(*args, **kwargs)
        return out if len(runs) == 1 else change(out)

    spoil(second)
    fails(testing.plans, word)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    (
        ("from_settings", classmethod(lambda cls, settings: cls(window=7)), "lost in JSON"),
        ("paper", "", "a docstring and a paper"),
        ("summary", classmethod(lambda cls: ""), "a docstring and a paper"),
    ),
)
def test_contract_sees_settings_that_make_no_round_trip(monkeypatch, name, value, word):
    monkeypatch.setattr(ZipAR, name, value)
    with pytest.raises(AssertionError, match=word):
        testing.check_settings(ZipAR)


def test_contract_sees_an_unknown_setting_that_is_taken(monkeypatch):
    take = ZipAR.from_settings
    known = classmethod(lambda cls, settings: take({k: v for k, v in settings.items() if k in vars(cls())}))
    monkeypatch.setattr(ZipAR, "from_settings", known)
    with pytest.raises(AssertionError, match="an unknown setting was accepted"):
        testing.check_settings(ZipAR)


def test_a_method_may_have_no_settings(register):
    @register("image")
    @dataclass(frozen=True)
    class Bare(Method):
        """Does one thing."""

        paper = "Nobody, 2026"

    testing.check_settings(Bare)
    with pytest.raises(UnknownNameError, match="unknown setting of image.Bare 'x': there are none"):
        Bare.from_settings({"x": 1})


# All of it


@pytest.fixture
def noted(monkeypatch):
    """Which family each clause is asked of, instead of the clauses."""
    asked = []
    monkeypatch.setattr(testing, "CLAUSES", (lambda method, example: asked.append(example.family),))
    monkeypatch.setattr(
        testing, "OF_SESSIONS", (lambda method, example: asked.append(f"{example.family} in sessions"),)
    )
    return asked


def test_every_claimed_family_has_a_model_or_is_told(monkeypatch, noted):
    testing.check_method(SuffixDraft, thorough=False)
    assert {family for family in noted if " " not in family} == SuffixDraft.families
    noted.clear()
    few = [example for example in testing.examples("speech") if example.family != "moonshine_streaming"]
    monkeypatch.setattr(testing, "examples", lambda modality: few)
    with pytest.raises(AssertionError, match=r"SuffixDraft claims moonshine_streaming: .* mmaccel.speech.examples"):
        testing.check_method(SuffixDraft)
    assert not noted, "it is told before minutes of work"


def test_a_method_that_names_no_family_claims_all_of_its_modality(monkeypatch, noted):
    testing.check_method(ZipAR, thorough=False)
    first, *others = [example.family for example in testing.examples("image")]
    assert noted == [first, f"{first} in sessions", *others] and first == "janus"
    with monkeypatch.context() as patch:
        patch.setattr(testing, "examples", lambda modality: [JANUS])
        with pytest.raises(AssertionError, match=f"ZipAR claims {', '.join(sorted(others))}: "):
            testing.check_method(ZipAR)
    noted.clear()
    monkeypatch.setattr(ZipAR, "families", frozenset({"emu3", "janus"}))
    testing.check_method(ZipAR)
    assert noted == ["janus", "janus in sessions", "emu3", "emu3 in sessions"]


def test_a_failure_names_method_family_and_clause(monkeypatch):
    def clause(method, example):
        assert example.family != "emu3", "why"

    monkeypatch.setattr(testing, "CLAUSES", (clause,))
    with pytest.raises(AssertionError, match="image.ZipAR on emu3, clause: why"):
        testing.check_method(ZipAR)
    assert [each.__name__ for each in CLAUSES] == [
        "engaged_and_clean",
        "neutral",
        "seeded",
        "shapes",
        "exception",
        "two_instances",
        "plans",
    ]
