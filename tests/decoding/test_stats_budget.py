"""Counting, measured verification cost, and the choice of width."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from mmaccel.decoding import Budget, Stats, VerifyCost, block_efficiency


# -------------------------------------------------------------------------------------------------- Stats
def test_stats_by_depth():
    stats = Stats()
    stats.observe(torch.tensor([3, 1, 0]), drafted=3)
    stats.observe([1], drafted=1)
    assert stats.tested_by_depth == [4, 2, 1]
    assert stats.accepted_by_depth == [3, 1, 1]
    assert stats.acceptance == [0.75, 0.5, 1.0]
    assert (stats.rounds, stats.rows, stats.drafted, stats.accepted, stats.emitted) == (2, 4, 10, 5, 9)


def test_stats_of_a_tree_count_depth_apart_from_nodes():
    stats = Stats()
    stats.observe([2], drafted=7, depth=2)
    assert (stats.drafted, stats.tested_by_depth) == (7, [1, 1])


@pytest.mark.parametrize(
    ("accepted", "drafted", "depth", "message"),
    [
        ([3], 2, None, "accepted must be between 0 and the draft depth 2"),
        ([-1], 2, None, "accepted must be between"),
        ([0], 2, 3, "depth must be between 0 and drafted=2"),
    ],
)
def test_stats_refuse(accepted, drafted, depth, message):
    with pytest.raises(ValueError, match=message):
        Stats().observe(accepted, drafted, depth=depth)


def test_plain_decoding_is_one_token_per_forward_at_any_batch():
    stats = Stats()
    assert stats.tokens_per_forward == 0.0
    for _ in range(5):
        stats.observe([0, 0, 0, 0], drafted=0)
    assert stats.tokens_per_forward == 1.0
    stats.forwards += 5
    assert stats.tokens_per_forward == 0.5


def test_merge_adds_and_leaves_both_alone():
    left, right = Stats(), Stats()
    left.observe([2, 0], 2)
    left.seconds["draft"] += 1.0
    right.observe([4], 4)
    right.seconds["verify"] += 2.0
    before = left.to_dict(), right.to_dict()
    both = left.merge(right)
    assert (left.to_dict(), right.to_dict()) == before
    assert both.tested_by_depth == [3, 2, 1, 1]
    assert both.accepted_by_depth == [2, 2, 1, 1]
    assert both.seconds == {"draft": 1.0, "verify": 2.0, "other": 0.0}
    assert both.emitted == left.emitted + right.emitted
    assert json.loads(json.dumps(both.to_dict()))["tokens_per_forward"] == both.tokens_per_forward


def test_block_efficiency():
    for a, g in itertools.product([0.0, 0.3, 0.8, 0.999999], [0, 1, 5, 20]):
        assert block_efficiency(a, g) == pytest.approx((1 - a ** (g + 1)) / (1 - a))
    assert block_efficiency(1.0, 7) == 8.0
    with pytest.raises(ValueError, match=r"acceptance must be in \[0, 1\], got 1.1"):
        block_efficiency(1.1, 2)
    with pytest.raises(ValueError, match="drafted must be at least 0"):
        block_efficiency(0.5, -1)


# --------------------------------------------------------------------------------------------- VerifyCost
def test_cost_interpolates_and_extrapolates():
    cost = VerifyCost((2, 4, 8), (1.0, 2.0, 6.0))
    assert [cost.seconds(n) for n in (1, 2, 3, 4, 6, 8, 10)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0]
    assert VerifyCost((4,), (3.0,)).seconds(100) == 3.0
    with pytest.raises(ValueError, match="n must be at least 1"):
        cost.seconds(0)


def test_cost_is_repaired_to_be_monotone():
    cost = VerifyCost((1, 4, 8, 16), (3.0, 1.0, 2.0, 5.0))
    assert cost.times == (2.0, 2.0, 2.0, 5.0)


@pytest.mark.parametrize(
    ("buckets", "times", "message"),
    [
        ((), (), "one time per bucket"),
        ((1, 2), (1.0,), "one time per bucket"),
        ((2, 1), (1.0, 1.0), "ascend strictly"),
        ((0, 1), (1.0, 1.0), "ascend strictly"),
        ((1,), (0.0,), "positive and finite"),
        ((1,), (float("nan"),), "positive and finite"),
    ],
)
def test_cost_refuses(buckets, times, message):
    with pytest.raises(ValueError, match=message):
        VerifyCost(buckets, times)


def test_measure_takes_the_median_after_a_warm_up():
    now, calls = [0.0], []

    def forward(n):
        calls.append(n)
        first = calls.count(n) == 1
        # The warm-up is slow, and so is one of the three timed calls.
        now[0] += 100.0 if first or calls.count(n) == 3 else float(n)

    cost = VerifyCost.measure(forward, (1, 4), repeats=3, clock=lambda: now[0])
    assert calls == [1] * 4 + [4] * 4
    assert cost.times == (1.0, 4.0)
    assert VerifyCost.from_dict(json.loads(json.dumps(cost.to_dict()))) == cost
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        VerifyCost.measure(forward, repeats=0)


# ------------------------------------------------------------------------------------------------- Budget
CHEAP = VerifyCost((1, 64), (1.0, 1.2))
STEEP = VerifyCost((1, 64), (1.0, 64.0))


def run(budget, length, rounds):
    """Feed runs of `length(round)` tokens, cut to the width; return the widths used."""
    widths = []
    for i in range(rounds):
        width = budget.width()
        assert width == budget.width()  # asking changes nothing
        budget.observe(width, max(1, min(width, length(i))))
        widths.append(width)
    return widths


def test_grows_while_runs_fill_the_window():
    widths = run(Budget(CHEAP, (1, 4, 8, 16, 32, 64)), lambda i: 64, 60)
    assert widths[0] == 4
    assert widths == sorted(widths)
    assert widths[-1] == 64


def test_settles_on_the_width_that_pays():
    cost = VerifyCost((1, 4, 8, 16, 32), (1.0, 1.1, 1.2, 4.0, 8.0))
    widths = run(Budget(cost, (4, 8, 16, 32)), lambda i: 8, 100)
    assert widths[-1] == 8
    assert 32 not in widths


def test_narrow_widths_are_judged_from_wide_runs():
    cost = VerifyCost((1, 2, 8), (1.0, 1.01, 1.9))
    budget = Budget(cost, (2, 8))
    for _ in range(16):
        budget.observe(8, 2)
    assert budget.width() == 2


def test_a_wider_window_is_tried_once_and_left_where_it_gains_nothing():
    """Runs of two tokens whatever the width: 8 is tried, since wider drafts may mature, and 16 never."""
    budget = Budget(CHEAP, (4, 8, 16))
    widths = run(budget, lambda i: 2, 40)
    assert widths.count(8) == budget.trial
    assert 16 not in widths and set(widths[-20:]) == {4}


def test_a_wider_window_is_kept_where_drafts_mature():
    """Acceptance that grows with the width is found, though narrow runs never fill their window."""
    budget = Budget(CHEAP, (4, 8, 16))
    gains = {4: 2, 8: 4, 16: 8}
    widths = []
    for _ in range(60):
        widths.append(budget.width())
        budget.observe(widths[-1], gains.get(widths[-1], 1))
    assert set(widths[-20:]) == {16}


def test_falls_back_to_plain_when_wide_passes_cost_too_much():
    assert set(run(Budget(STEEP), lambda i: 64, 200)) == {1}


def test_falls_back_to_plain_when_nothing_is_accepted():
    widths = run(Budget(CHEAP, trial=8), lambda i: 1, 50)
    assert widths[:8] == [4] * 8
    assert set(widths[8:]) == {1}


def test_below_the_switch_off_is_plain():
    cost = VerifyCost((1, 4), (1.0, 1.0))
    runs = itertools.cycle([1] * 24 + [2])  # 1.04 tokens a pass
    assert run(Budget(cost, (4,), trial=25), lambda i: next(runs), 26)[-1] == 1
    runs = itertools.cycle([1] * 24 + [2])
    assert run(Budget(cost, (4,), switch_off=1.03, trial=25), lambda i: next(runs), 26)[-1] == 4


def test_recovers_by_probing():
    budget = Budget(CHEAP, retry=64, trial=8)
    first = run(budget, lambda i: 1, 8 + 64)
    assert first == [4] * 8 + [1] * 64
    later = run(budget, lambda i: 64, 60)
    assert later[0] == 4
    assert later[-1] == 64


def test_is_deterministic():
    lengths = [(7 * i) % 13 + 1 for i in range(200)]
    widths = [run(Budget(CHEAP), lambda i: lengths[i], 200) for _ in range(2)]
    assert widths[0] == widths[1]


def test_batches_count_per_sequence():
    budget = Budget(CHEAP, (4,), trial=8)
    budget.observe(4, [1] * 8)
    assert budget.width() == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"candidates": ()}, "candidates must be widths"),
        ({"candidates": (0, 4)}, "candidates must be widths"),
        ({"switch_off": 0.0}, "switch_off must be positive"),
        ({"history": 4}, "trial <= history"),
        ({"retry": 0}, "retry >= 1"),
    ],
)
def test_budget_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        Budget(CHEAP, **settings)


@pytest.mark.parametrize(("width", "emitted"), [(4, 0), (4, 5), (1, 2), (4, [1, 5])])
def test_budget_refuses_impossible_runs(width, emitted):
    with pytest.raises(ValueError, match=f"emitted must be between 1 and width={width}"):
        Budget(CHEAP).observe(width, emitted)
