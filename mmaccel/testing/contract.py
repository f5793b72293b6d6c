"""The contract that every registered method must pass, on tiny models of the real classes.

A modality brings its models as examples; :func:`check_method` does the rest. New methods need no
test of their own for any of this::

    @pytest.mark.parametrize("name", mmaccel.methods())
    def test_contract(name):
        mmaccel.testing.check_method(mmaccel.get_method(name))
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from ..adapter import adapters
from ..errors import ActiveSessionError, UnknownNameError
from ..method import Method
from ..modality import Modality, get_modality
from ..plan import Plan, modality_of, plan
from ..session import Session, accelerate
from .example import Arguments, Example
from .snapshot import snapshot


def examples(modality: str) -> list[Example]:
    """The examples of a modality, the same ones every time, so that what they know of their targets is found once."""
    return _examples(type(get_modality(modality)))


@cache
def _examples(modality: type[Modality]) -> list[Example]:
    return modality().examples()


def check_method(method: type[Method], thorough: bool = True) -> None:
    """Hold a method against the whole contract, on every example of its modality whose family it works on.

    Parameters
    ----------
    thorough
        Whether every family is held against :data:`OF_SESSIONS` too, whose clauses hang more on the method than on the
        family; default True. False holds one of them against these, a third less work.

    Raises
    ------
    AssertionError
        Names the clause and the model family.
    """
    check_settings(method)
    modality, claimed = modality_of(method), _claimed(method)
    known = examples(modality)
    missing = ", ".join(sorted(claimed - {example.adapter_family for example in known}))
    assert not missing, f"{method.name} claims {missing}: add a model of it to mmaccel.{modality}.examples"
    for number, example in enumerate(example for example in known if example.adapter_family in claimed):
        for clause in CLAUSES + OF_SESSIONS * (thorough or not number):
            try:
                clause(method, example)
            except AssertionError as error:
                raise AssertionError(f"{method.name} on {example.family}, {clause.__name__}: {error}") from error


def _claimed(method: type[Method]) -> frozenset[str]:
    """The families that a method says it works on; all of its modality where it names none."""
    if method.families is not None:
        return method.families
    own = (adapter for adapter in adapters() if adapter.modality == modality_of(method))
    return frozenset(adapter.family for adapter in own if not adapter.exclusive)


def check_settings(method: type[Method]) -> None:
    """Settings make the round trip through JSON, and an unknown one is an error with a suggestion."""
    first = method()
    assert method.from_settings(json.loads(json.dumps(first.settings()))) == first, "settings are lost in JSON"
    assert method.summary() and method.paper, "a docstring and a paper"
    key = next(iter(first.settings()), "")
    try:
        method.from_settings({key + "x": 1})
    except UnknownNameError as error:
        assert not key or repr(key) in str(error), f"no suggestion in {error}"
    else:
        raise AssertionError("an unknown setting was accepted")


def _forget(session: Session, method: type[Method]) -> None:
    """Let the next run be like the first one of its session, where the method says that it is not."""
    if method.adapts:
        session.memory.clear()


@contextmanager
def left_clean(example: Example) -> Iterator[tuple[Any, Arguments]]:
    """A target that has run before and the arguments of its call; after the block, nothing of that is left on it."""
    model, arguments, names, plain = example.tried
    try:
        before = snapshot(model)
        yield model, arguments
        left = snapshot(model)
        assert names == left.keys() and before == left, "left a trace"
        assert torch.equal(example.run(model, arguments), plain), "the model gives other tokens than before"
    except BaseException:
        vars(example).pop("tried", None)  # others get one that is clean
        raise


def engaged_and_clean(method: type[Method], example: Example) -> None:
    """It runs, does less work or gives another output, and leaves nothing behind, also after a plain run."""
    plain = example.plain
    with (
        left_clean(example) as (model, arguments),
        accelerate(model, method(**example.settings(method.engaging))) as session,
    ):
        runs = [example.run(session, arguments) for _ in range(1 + method.learns)]
        out, report = runs[-1], session.report
        assert report.engaged, "did not engage"
        assert out.shape == plain.shape, f"shape {tuple(out.shape)} instead of {tuple(plain.shape)}"
        saved = report.work_ratio is not None and report.work_ratio < 1
        assert saved or not torch.equal(out, plain), "no less work, and the same output"
        assert report.wall_seconds > 0, "the report is not filled"
        lines = str(report).splitlines()
        assert len(lines) - len(report.warnings) <= 8, "more than 8 lines of figures"
        assert all(any(text in line for line in lines) for text in report.warnings), "a warning is left out"
        json.dumps(report.to_dict())


def neutral(method: type[Method], example: Example) -> None:
    """The neutral settings are bit-identical to the target without the method."""
    (model, arguments), plain = example.shared, example.plain
    with accelerate(model, method(**example.settings(method.neutral))) as session:
        torch.manual_seed(0)
        assert torch.equal(example.run(session, arguments, seed=None), plain), "neutral settings change the output"


def seeded(method: type[Method], example: Example) -> None:
    """A generator makes runs repeatable and leaves the global random state alone."""
    model, arguments = example.shared
    with accelerate(model, method(**example.settings(method.engaging))) as session:
        state = torch.get_rng_state()
        first = example.run(session, arguments, batch=2)
        assert torch.equal(torch.get_rng_state(), state), "the global random state was touched"
        _forget(session, method)
        assert torch.equal(example.run(session, arguments, batch=2), first), "the same seed gave another output"


def shapes(method: type[Method], example: Example) -> None:
    """Batches of several sizes in one session, and the example's other shapes, as without the method."""
    model, arguments = example.shared
    with accelerate(model, method(**example.settings(method.engaging))) as session:
        fast = example.shapes(session, arguments)
    plain, sizes = example.plain_shapes, [shape[0] for shape in fast[:2]]
    assert sizes == [3, 1] and fast == plain, f"shapes {fast} instead of {plain}, rows {sizes}"


def exception(method: type[Method], example: Example) -> None:
    """An exception half-way leaves the session usable and the target clean."""
    with left_clean(example) as (model, arguments):
        session = accelerate(model, method(**example.settings(method.engaging)))
        expected = example.run(session, arguments)
        with broken_after(example.module(model), example.interrupt_after):
            try:
                example.run(session, arguments)
            except Interrupted:
                pass
            else:
                raise AssertionError("the hook never fired")
        _forget(session, method)
        assert torch.equal(example.run(session, arguments), expected), "the session is damaged"
        session.remove()


def two_instances(method: type[Method], example: Example) -> None:
    """Two sessions never see each other; a second one on the same target is refused."""
    (one, arguments), (two, _) = example.build(0), example.build(1)
    alone = method(**example.settings(method.engaging))
    with accelerate(two, alone) as session:
        expected = example.run(session, arguments)
    with accelerate(one, alone) as first, accelerate(two, alone) as second:
        example.run(first, arguments)
        out = example.run(second, arguments)
        assert torch.equal(out, expected) or not method.repeatable, "another session had an effect"
        try:
            accelerate(one, alone)
        except ActiveSessionError as error:
            assert method.__name__ in str(error), "the error does not name the live session"
        else:
            raise AssertionError("a second session on one target was allowed")


def plans(method: type[Method], example: Example) -> None:
    """A plan survives JSON, and does what the method does."""
    model, arguments = example.shared
    made = plan(model, method(**example.settings(method.engaging)))
    again = Plan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made, "a plan is lost in JSON"
    with accelerate(model, made) as session:
        expected = example.run(session, arguments)
    with accelerate(model, again) as session:
        out = example.run(session, arguments)
    assert out.shape == expected.shape, "a saved plan gives another shape"
    assert torch.equal(out, expected) or not method.repeatable, "a saved plan does something else"


CLAUSES = (engaged_and_clean, neutral, seeded, shapes, exception)
OF_SESSIONS = (two_instances, plans)


class Interrupted(Exception):
    """Raised by the hook of :func:`broken_after`."""


@contextmanager
def broken_after(module: torch.nn.Module, calls: int) -> Iterator[None]:
    """The module's forward raises from its `calls + 1`-th call on."""
    count = itertools.count()

    def interrupt(*_: Any) -> None:
        if next(count) >= calls:
            raise Interrupted

    with module.register_forward_pre_hook(interrupt):
        yield
