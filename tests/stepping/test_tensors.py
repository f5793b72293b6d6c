"""Nested tensors and their differences, and what the caches' rules make of them."""

from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmaccel.stepping import EasyReuse, LatentLayout, SamplerRun, StepAllocation, StepReuse, refresh
from mmaccel.stepping.ratios import growth, stretched
from mmaccel.stepping.replay import Replay
from mmaccel.stepping.reuse import BranchState
from mmaccel.stepping.schedule import Schedule
from mmaccel.stepping.tensors import (
    count_bytes,
    map_tensors,
    mean_change,
    mean_size,
    plus,
    predicted,
    relative_change,
    tensors,
)

ONE, TWO = torch.tensor([1.0, 3.0]), torch.tensor([5.0])


def test_structures_keep_their_kind():
    given = OrderedDict(a=ONE, b=(TWO, [ONE, None]), c="text")
    doubled = map_tensors(lambda x: 2 * x, given)
    assert type(doubled) is OrderedDict and type(doubled["b"]) is tuple and type(doubled["b"][1]) is list
    assert [x.tolist() for x in tensors(doubled)] == [[2.0, 6.0], [10.0], [2.0, 6.0]]
    assert doubled["b"][1][1] is None and doubled["c"] == "text" and ONE.tolist() == [1.0, 3.0]


def test_changes_are_means_over_all_elements():
    assert mean_size([ONE, TWO]) == 3.0 and mean_size([]) == 0.0
    assert mean_change([ONE, TWO], [-ONE, TWO]) == pytest.approx(8 / 3)
    assert relative_change([2 * ONE, TWO], [ONE, -TWO]) == pytest.approx(14 / 9), "relative to what was"
    assert mean_change([ONE], [TWO]) == relative_change([ONE], [TWO]) == float("inf"), "another shape"
    assert relative_change([ONE], [0 * ONE]) == float("inf")
    with pytest.raises(ValueError, match="shorter|longer"):
        mean_change([ONE, TWO], [ONE])
    assert mean_change([torch.tensor([60000.0]).half()], [torch.tensor([-60000.0]).half()]) == 120_000, "in float32"


def test_bytes_of_structures_and_objects():
    held = SimpleNamespace(residual=(ONE, None), step=3, seen=[TWO.half()])
    assert count_bytes(held) == 8 + 2 and count_bytes(ONE, {"a": TWO}, [ONE]) == 8 + 4 + 8 and count_bytes() == 0


def test_a_base_of_other_dimensions_is_left_out():
    assert torch.equal(plus(ONE, ONE[None]), ONE) and torch.equal(plus(ONE, None), ONE)
    result = plus(ONE, TWO.double(), -1)
    assert result.dtype == torch.float32 and result.tolist() == [-4.0, 3.0] and ONE.tolist() == [1.0, 3.0]


def test_growth_is_the_mean_ratio_of_the_tokens():
    old = torch.tensor([[[3.0, 4.0], [0.0, 2.0]]])
    assert growth(old, torch.tensor([[[6.0, 8.0], [0.0, 2.0]]])) == pytest.approx(1.5)
    assert growth(old, old.bfloat16()) == pytest.approx(1.0)
    assert 0 < growth(torch.zeros(1, 1, 2), old[:, :1]) < float("inf")
    assert stretched((1.0, 2.0, 3.0), 1) == [1.0] and stretched((1.0, 2.0, 3.0), 3) == [1.0, 2.0, 3.0]


def test_a_model_whose_input_stands_still_predicts_nothing():
    """There is no ratio of changes then, so that every step is computed, and the advice says that."""
    run, done = SamplerRun(6, [0.0] * 7), []
    cache, asked = EasyReuse(run, threshold=9.0, warmup=1, cooldown=0), []
    cache.agree = lambda large: asked.append(large) or large
    for run.step in range(6):
        run.branch = 0
        done.append(cache.answer([ONE], lambda: run.step * ONE)[1])
    assert asked == [True] * 5, "as devices that share a model wait for each other's word"
    assert done == [1.0] * 6 and cache.advice() == "no step had a finite change" and cache.too_short() == ""


@pytest.mark.parametrize("output", (tuple, lambda given: OrderedDict(zip(("sample", "kv_cache"), given, strict=True))))
def test_keys_and_values_that_a_model_hands_back_are_not_measured(output):
    """As of pipelines that draw in blocks: beside them the change of any prediction would be small."""

    def decided(*handed):
        run = SamplerRun(12, [0.0] * 13)
        cache, found = EasyReuse(run, threshold=0.2, warmup=2), []
        for run.step in range(12):
            run.branch, given = 0, 1.1**run.step * ONE
            found.append(cache.answer([given], lambda given=given: output((given**2, *handed)) if handed else given**2))
        return [share for _, share in found], found[-1][0], cache.state

    kept = {0: {"key": torch.full((9999,), 1e6)}}
    (shares, _, _), (same, last, state) = decided(), decided(kept)
    assert same == shares and 2 < sum(shares) < 12
    assert list(last)[1] is kept if output is tuple else last["kv_cache"] is kept
    assert sum(x.numel() for x in predicted(list(vars(state).values()))) == 3 * len(ONE)


def test_what_a_caller_overwrites_is_remembered_as_it_was():
    run = SamplerRun(5, [0.0] * 6)
    cache, found = EasyReuse(run, threshold=9.0, warmup=2, cooldown=0), []
    for run.step in range(5):
        run.branch, given = 0, (1.0 + run.step) * ONE
        output, share = cache.answer([given], lambda given=given: 3 * given)
        found.append((share, output.tolist()))
        given.fill_(float("nan"))
        output.fill_(float("nan"))
    assert [share for share, _ in found] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert [output for _, output in found[2:]] == [(6 * ONE).tolist()] * 3


def test_branches_and_experts_remember_their_own():
    run = SamplerRun(9, [0.0] * 10)
    rule = StepReuse(run, threshold=1.0, warmup=1)
    for run.expert, run.branch in ((0, 0), (0, 1), (1, 0)):
        assert rule.state.step == -1
        rule.begin()
        rule.computed(f"residual of {run.expert} {run.branch}")
    assert {key: state.residual for key, state in rule.states.items()} == {
        key: f"residual of {key[0]} {key[1]}" for key in ((0, 0), (0, 1), (1, 0))
    }
    run.step, run.expert, run.branch = 1, 1, 1
    assert not rule.may_reuse, "this branch of this expert has nothing to reuse"
    run.branch = 0
    assert rule.may_reuse and not rule.skips, "before it is decided"
    rule.begin()
    for error, expected in ((0.5, True), (1.0, False), (float("nan"), False)):
        rule.decide(error)
        assert rule.reuse == rule.skips == expected
    assert rule.smallest == 1.0
    assert "smallest change was 1: try threshold=1.2" in rule.advice()


def test_what_another_process_has_computed_is_no_advice():
    """That would be a lower threshold than the one by which this one would have reused."""
    rule = StepReuse(SamplerRun(3, [0.0] * 4), threshold=1.0)
    rule.agree = lambda large: True
    rule.decide(2.0)
    assert not rule.outvoted and "threshold=2.4" in rule.advice()
    rule.decide(0.5)
    assert not rule.reuse and rule.smallest == 2.0
    assert rule.advice().startswith("another process computed what this one would have reused")


def test_nothing_seen_is_an_infinite_change():
    state = BranchState()
    assert state.change([ONE]) == float("inf")
    state.seen = [ONE]
    assert state.change([2 * ONE]) == 1.0


@pytest.mark.parametrize("tokens", ("hottest", "random"))
def test_pinned_tokens_are_never_chosen(tokens):
    levels = torch.linspace(1, 0, 25).tolist()
    run, x = StepAllocation(levels, refresh(24, 0.6, fraction=0.34), tokens=tokens), torch.ones(1, 6, 3)
    run.layout, run.pinned, chosen = LatentLayout(()), torch.tensor([True, True, False, False, False, False]), set()
    source = torch.Generator().manual_seed(0)
    for k in range(24):
        share = run.begin(k)
        if run.active is not None:
            chosen.update(run.active.tolist())
        x = run.step(lambda velocity, x: x, torch.randn(1, 6, 3, generator=source) if share else None, x)
    assert chosen and chosen <= {2, 3, 4, 5}


def test_pinned_tokens_may_be_told_by_a_model_on_another_device():
    with FakeTensorMode():
        run = StepAllocation([1.0, 0.0], Schedule((1,)), correct=False)
        run.layout, run.pinned = LatentLayout(()), torch.zeros(6, dtype=torch.bool, device="cuda:0")
        x = torch.ones(1, 6, 3)
        run.begin(0)
        run.step(lambda velocity, x: x, x, x)
        assert run.order.device == x.device


def test_steps_that_may_be_made_again_hold_four_tensors():
    """Where they began, where the last one did and ended, and the velocities of each."""
    replay, x = Replay(), torch.zeros(3)
    replay.begin(x)
    for ends in (1, 2):
        replay.arrive(x)
        x = x + 1
        replay.note((1.0, 1.0), torch.ones(3), lambda velocity, sample: sample, x)
        assert replay.nbytes() == 4 * 3 * (3 + ends)


@pytest.mark.parametrize("in_place", (False, True))
@pytest.mark.parametrize("added", (0.0, 0.5))
def test_what_a_pipeline_does_between_steps_is_no_miss_of_forecasts(added, in_place):
    """It holds the first token until half of the run, as soft conditions do, and adds to the others in one step.

    Along velocities on a straight slope the end is then that of the run that computes all.
    """
    levels = torch.linspace(1, 0, 13).tolist()
    first, slope = torch.randn(2, 1, 3, 2, generator=torch.Generator().manual_seed(0))
    found = []
    for schedule in (Schedule((1.0,) * 12), Schedule((1, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1))):
        run, x = StepAllocation(levels, schedule, forecast=0.5), torch.zeros(1, 3, 2)
        run.layout = LatentLayout(())
        for k in range(12):
            true = first + levels[k] * slope if run.begin(k) else None
            ended = run.step(lambda v, x, k=k: x + (levels[k + 1] - levels[k]) * v, true, x)
            if k == 4:
                ended = ended if in_place else ended.clone()
                ended[:, 1:] += added
            x = torch.cat([x[:, :1], ended[:, 1:]], 1) if k < 6 else ended
        found.append(x)
    torch.testing.assert_close(found[1], found[0])
    assert run.missed > 0
