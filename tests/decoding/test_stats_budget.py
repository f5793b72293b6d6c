"""Counting, measured verification cost, and the choice of width."""

from __future__ import annotations

import itertools
import random
from statistics import median

import pytest

from mmaccel.decoding import Budget, Draft, Stats, VerifyCost
from mmaccel.decoding.generated_text import Drafts


# -------------------------------------------------------------------------------------------------- Stats
def test_stats_by_depth():
    stats = Stats()
    stats.observe([3, 1, 0], drafted=3)
    stats.observe([1], drafted=1)
    assert stats.tested_by_depth == [4, 2, 1]
    assert stats.accepted_by_depth == [3, 1, 1]
    assert stats.acceptance == [0.75, 0.5, 1.0]
    assert (stats.rounds, stats.rows, stats.drafted, stats.accepted, stats.emitted) == (2, 4, 10, 5, 9)


def test_stats_of_a_tree_count_depth_apart_from_nodes():
    stats = Stats()
    stats.observe([2], drafted=7, depth=2)
    assert (stats.drafted, stats.tested_by_depth) == (7, [1, 1])


def test_drafts_of_different_sizes_are_counted_as_they_are():
    """A batch of which one text has a draft of two tokens, and another none."""
    drafts, stats = Drafts((Draft((5, 6)), Draft(())), known=(1, 1)), Stats()
    stats.observe([1, 0], drafts.size, depth=drafts.depth, nodes=drafts.nodes)
    assert (stats.drafted, stats.accepted, stats.emitted) == (2, 1, 3)


@pytest.mark.parametrize(
    ("accepted", "drafted", "depth", "message"),
    [
        ([3], 2, None, "accepted must be between 0 and the draft depth 2"),
        ([-2], 2, None, "accepted must be between"),
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


def test_statistics_and_costs_as_plain_types():
    stats = Stats()
    stats.observe([1, 0], drafted=2)
    stats.seconds["verify"] += 1.5
    counts = {"rounds": 1, "rows": 2, "drafted": 4, "emitted": 3, "forwards": 1, "accepted": 1}
    by_depth = {"accepted_by_depth": [1, 0], "tested_by_depth": [2, 1], "acceptance": [0.5, 0.0]}
    seconds = {"seconds": {"draft": 0.0, "verify": 1.5, "other": 0.0}}
    assert stats.to_dict() == counts | by_depth | seconds | {"tokens_per_forward": 1.5}
    assert Stats().seconds is not Stats().seconds
    assert VerifyCost((1, 4), (1.0, 2.0)).to_dict() == {"buckets": [1, 4], "times": [1.0, 2.0]}


# --------------------------------------------------------------------------------------------- VerifyCost
def test_cost_interpolates_and_extrapolates():
    cost = VerifyCost((2, 4, 8), (1.0, 2.0, 6.0))
    assert [cost.seconds(n) for n in (1, 2, 3, 4, 6, 8, 10)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0]
    assert VerifyCost((4,), (3.0,)).seconds(100) == 3.0


def test_cost_is_repaired_to_be_monotone():
    cost = VerifyCost((1, 4, 8, 16), (3.0, 1.0, 2.0, 5.0))
    assert cost.times == (2.0, 2.0, 2.0, 5.0)


# ------------------------------------------------------------------------------------------------- Budget
# Seconds by width, as measured: a small model on a processor, the same with four pictures, a GPU; and a model whose
# every token costs as much as a pass.
CURVES = {
    "processor": VerifyCost((1, 4, 8, 16, 32, 64), (4.7, 5.6, 6.8, 9.2, 12.7, 17.0)),
    "four pictures": VerifyCost((1, 4, 8, 16, 32, 64), (5.8, 8.0, 10.7, 16.1, 25.9, 45.2)),
    "gpu": VerifyCost((1, 64), (20.0, 21.6)),
    "linear": VerifyCost((1, 64), (1.0, 64.0)),
}
ACCEPTED = {"good": (0.55, 0.9), "never": (0.0, 0.0)}


class Picture:
    """Drafts mature: one that was drawn anew `age` times is accepted with that much of its final chance.

    The chance of the first draft of a window is smaller than that of those behind it, as on `tiny-janus`.
    """

    def __init__(self, accepted, seed, length=255):
        self.random, self.left, self.ages = random.Random(seed), length, []
        self.first, self.later = ACCEPTED[accepted]

    def forward(self, width):
        self.ages = (self.ages + [0] * width)[: width - 1]
        kept = 0
        for depth, age in enumerate(self.ages):
            if self.random.random() >= (self.later if depth else self.first) * (1 - 0.3**age):
                break
            kept += 1
        self.ages = [age + 1 for age in self.ages[kept + 1 :]]
        emitted = min(kept + 1, self.left)
        self.left -= emitted
        return emitted


def noise(seed, noisy):
    """Factors on the cost of a pass: other work on the machine makes some of them up to three times as long."""
    source = random.Random(seed)
    while True:
        slow = noisy and source.random() > 0.7
        yield (1 + 0.3 * noisy * source.random()) * (1 + 2 * slow * source.random())


def draw(budget, curve, accepted, seed, noisy=False):
    """Seconds and widths of a picture; a number for a budget is a fixed width."""
    picture, factors = Picture(accepted, seed), noise(seed, noisy)
    seconds, widths = 0.0, []
    while picture.left:
        width = min(budget if isinstance(budget, int) else budget.width(), picture.left)
        took = CURVES[curve].seconds(width) * next(factors)
        emitted = picture.forward(width)
        if not isinstance(budget, int):
            assert budget.width() == budget.width()  # asking changes nothing
            budget.observe(width, [emitted], took)
        seconds, widths = seconds + took, [*widths, width]
    return seconds, widths


def gain(budget, curve, accepted, noisy=False):
    """Median speed-up over plain decoding, on cold starts, and the third worst of 30."""
    make = (lambda: budget) if isinstance(budget, int) else budget
    plain = [draw(1, curve, accepted, seed, noisy)[0] for seed in range(30)]
    gains = sorted(base / draw(make(), curve, accepted, seed, noisy)[0] for seed, base in enumerate(plain))
    return median(gains), gains[2]


@pytest.mark.parametrize("noisy", (False, True), ids=("clean", "noisy"))
@pytest.mark.parametrize("curve", ("processor", "four pictures", "gpu"))
def test_a_cold_start_is_near_the_best_fixed_width(curve, noisy):
    fixed = {w: gain(w, curve, "good", noisy)[0] for w in (4, 8, 16, 32, 64)}
    best = max(fixed.values())
    assert best > 1.3
    found, worst = gain(Budget, curve, "good", noisy)
    assert found > 0.88 * best, (found, fixed)
    assert worst > 0.7 * best


@pytest.mark.parametrize("noisy", (False, True), ids=("clean", "noisy"))
@pytest.mark.parametrize(
    ("curve", "least"), (("processor", 0.93), ("four pictures", 0.93), ("gpu", 0.93), ("linear", 0.85)), ids=str
)
def test_little_is_lost_where_no_draft_is_ever_accepted(curve, least, noisy):
    found, worst = gain(Budget, curve, "never", noisy)
    assert found > least and worst > least - 0.1


def test_a_later_picture_starts_with_what_the_first_one_taught():
    cold, warm = [], []
    for seed in range(20):
        budget = Budget()
        cold.append(draw(budget, "processor", "good", seed)[1])
        budget.begin()
        warm.append(draw(budget, "processor", "good", 100 + seed)[1])
    assert all(widths[:3] == [1, 1, 1] and widths[3] == 8 for widths in cold)
    assert all(widths[0] > 1 for widths in warm)


def variant(*candidates, **constants):
    """A budget that differs in some of its constants."""
    return type("Variant", (Budget,), {name.upper(): value for name, value in constants.items()})(candidates)


def feed(budget, curve, length, passes):
    """Feed runs of `length(pass)` tokens, cut to the width; return the widths used."""
    widths = []
    for i in range(passes):
        width = budget.width()
        budget.observe(width, [max(1, min(width, length(i)))], curve.seconds(width))
        widths.append(width)
    return widths


CHEAP = VerifyCost((1, 64), (1.0, 1.2))
DEAR = VerifyCost((1, 4, 8, 16, 32), (1.0, 1.1, 1.3, 4.0, 8.0))


def test_the_first_passes_tell_the_costs():
    """Three of one token, of which the first warms up, and six of eight; then as wide as is cheap."""
    assert feed(Budget(), CHEAP, lambda i: 4, 12) == [1] * 3 + [8] * 6 + [64] * 3
    # what a wider pass costs is a guess until it was timed
    assert feed(Budget(), DEAR, lambda i: 4, 14) == [1] * 3 + [8] * 6 + [32] * 3 + [8] * 2
    slow_start = itertools.chain([50.0, 1.0, 1.0, 50.0, 1.1, 1.1], itertools.repeat(1.1))
    budget = Budget((16,))
    for seconds in itertools.islice(slow_start, 6):
        budget.observe(budget.width(), [1], seconds)
    assert budget.cost == VerifyCost((1, 16), (1.0, 1.1)) and budget.width() == 16


def test_a_slow_pass_among_fast_ones_does_not_count():
    budget = Budget((16,))
    for i in range(40):
        width = budget.width()
        budget.observe(width, [1 if width == 1 else 3], 9.0 if i % 3 == 0 else CHEAP.seconds(width))
    assert budget.width() == 16 and budget.cost.seconds(16) == CHEAP.seconds(16)


def test_costs_follow_the_machine():
    """Only the last few passes of a width count."""
    budget = Budget((16,))
    feed(budget, CHEAP, lambda i: 8, 20)
    twice = VerifyCost((1, 64), (2.0, 2.4))
    feed(budget, twice, lambda i: 8, Budget.RECENT)
    assert budget.cost.seconds(16) == pytest.approx(twice.seconds(16))


def test_unrefined_drafts_do_not_judge():
    """A hard beginning, in which no draft is accepted, is waited for in a narrow window, and tells nothing of it."""
    curve = VerifyCost((1, 8, 16), (1.0, 1.1, 1.6))
    widths = feed(variant(8, 16, trial=1), curve, lambda i: 1 if i < 20 else 16, 30)
    assert widths == [1] * 3 + [8] * 18 + [16] * 9  # of eight tokens a pass, 8 would be better
    assert feed(variant(8, 16, trial=1), curve, lambda i: 2, 12)[3:] == [8] * 6 + [16] * 3


def test_wide_runs_judge_narrow_widths():
    """Of runs of two and three tokens a window of 4 commits nearly as many, at less than half the cost of 16."""
    widths = feed(variant(4, 16, start=16), VerifyCost((1, 4, 16), (1.0, 1.1, 2.7)), lambda i: 2 + i % 2, 40)
    assert widths == [1] * 3 + [16] * 18 + [4] * 19


def test_narrow_runs_never_judge_wide_widths():
    """A dear width is left alone, once its cost is known, while runs are short, and tried where they fill 4."""
    budget = variant(4, 16, start=4)
    curve = VerifyCost((1, 4, 16), (1.0, 1.1, 3.0))
    assert feed(budget, curve, lambda i: 2, 60) == [1] * 3 + [4] * 6 + [16] * 3 + [4] * 48
    widths = feed(budget, curve, lambda i: 16, 60)
    assert set(widths[-10:]) == {16}


def test_a_cheap_wider_window_is_tried():
    """Drafts that mature only in a wide window are found, though narrow runs never fill theirs."""
    budget, gains, widths = variant(4, 8, 16, start=4), {1: 1, 4: 2, 8: 4, 16: 8}, []
    for _ in range(60):
        widths.append(budget.width())
        budget.observe(widths[-1], [gains[widths[-1]]], CHEAP.seconds(widths[-1]))
    assert set(widths[-20:]) == {16}


def test_a_slightly_better_width_changes_nothing():
    """A dozen runs are too few to tell widths apart that differ by less than chance."""
    runs = itertools.cycle([1, 8])
    curve = VerifyCost((1, 8, 16), (1.0, 1.8, 2.7))
    widths = feed(variant(8, 16, start=16), curve, lambda i: next(runs), 60)
    assert set(widths[3:]) == {16}


def test_wide_passes_are_given_up_and_tried_again():
    """More than ten plain passes are lost; each later one forgives a share, and at five there is another try."""
    curve = VerifyCost((1, 16), (1.0, 2.0))
    widths = feed(variant(16, forgive=1 / 32), curve, lambda i: 1, 214)
    assert widths == [1] * 3 + [16] * 11 + [1] * 189 + [16] * 6 + [1] * 5
    budget = variant(16, forgive=1 / 32)
    feed(budget, curve, lambda i: 1, 3 + 11 + 189)
    assert set(feed(budget, curve, lambda i: 8, 40)) == {16}, "it stays where it gains by now"


def test_gains_of_the_past_pay_for_as_much_again():
    budget = Budget((16,))
    curve = VerifyCost((1, 16), (1.0, 2.0))
    feed(budget, curve, lambda i: 16, 60)
    widths = feed(budget, curve, lambda i: 1, 30)
    assert widths == [16] * 21 + [1] * 9


def test_plain_passes_that_were_timed_badly_are_timed_again():
    """Slow first passes make wide ones look cheap: they are given up all the same, and the truth is seen."""
    budget, widths = Budget((16,)), []
    for i in range(120):
        widths.append(budget.width())
        budget.observe(widths[-1], [1], 2.0 if i < 3 or widths[-1] > 1 else 1.0)
    assert widths.count(16) == 41  # a quarter of a plain pass is lost each, until it is more than ten
    assert set(widths[-70:]) == {1}


def test_a_new_picture_begins_with_the_width_for_drafts_that_are_not_refined():
    budget = Budget()
    assert feed(budget, CHEAP, lambda i: 4, 12)[-1] == 64
    budget.begin()
    assert feed(budget, CHEAP, lambda i: 4, 7) == [8] * 6 + [64]


def test_the_first_width_is_the_narrowest_where_none_is_as_narrow_as_asked():
    assert feed(variant(16, 32, start=4), CHEAP, lambda i: 4, 4) == [1] * 3 + [16]
    assert feed(variant(2, 5, 16, start=8), CHEAP, lambda i: 2, 4) == [1] * 3 + [5]


def test_the_last_pass_of_a_text_is_no_timing_of_a_width():
    """It is as narrow as the room that is left."""
    budget = Budget((16,))
    feed(budget, CHEAP, lambda i: 4, 12)
    known = budget.cost
    for _ in range(4):
        budget.observe(7, [3], 99.0)
    assert budget.cost == known == VerifyCost((1, 16), (1.0, CHEAP.seconds(16))) and budget.width() == 16


def test_only_recent_runs_count():
    """Four short runs are enough to forget the long ones."""
    curve, found = VerifyCost((1, 4, 16), (1.0, 1.1, 2.8)), []
    for history in (4, 400):
        budget = variant(4, 16, start=16, history=history, trial=4)
        feed(budget, curve, lambda i: 16, 60)
        found.append(feed(budget, curve, lambda i: 2, 8)[-1])
    assert found == [4, 16]


def test_batches_count_per_sequence():
    budget = Budget((16,))
    for _ in range(3 + 40):
        width = budget.width()
        budget.observe(width, [1, 3] if width > 1 else [1, 1], 1.0 if width == 1 else 1.9)
    assert budget.width() == 16, "two tokens a row repay 1.9 passes"


def test_is_deterministic():
    lengths = [(7 * i) % 13 + 1 for i in range(200)]
    widths = [feed(Budget(), CURVES["processor"], lambda i: lengths[i], 200) for _ in range(2)]
    assert widths[0] == widths[1]


def test_without_wide_candidates_it_is_plain():
    assert set(feed(Budget((1,)), CHEAP, lambda i: 1, 20)) == {1}
    assert Budget().cost is None
