"""Schedules, forecasts and solved steps by themselves."""

import itertools

import numpy as np
import pytest
import torch

from mmaccel.errors import SettingError
from mmaccel.stepping import LatentLayout, StepAllocation, Velocities, best_steps, groups, refresh
from mmaccel.stepping.allocation import active_count
from mmaccel.stepping.schedule import Schedule, default_schedule, equal_gaps, growing


@pytest.mark.parametrize("steps", (1, 2, 3, 8, 20, 40, 50))
@pytest.mark.parametrize("budget", (0.1, 0.25, 0.5, 0.75, 1.0))
@pytest.mark.parametrize("fraction", (0.0, 0.1, 0.25))
def test_schedules_keep_their_budget(steps, budget, fraction):
    made = refresh(steps, budget, fraction=fraction)
    assert len(made.fractions) == steps
    assert sum(made.fractions) <= max(budget * steps, 2) + 0.51
    assert sum(made.fractions) >= min(steps, budget * steps) - 0.51 or fraction
    assert made.fractions[0] == made.fractions[-1] == 1
    assert fraction or set(made.fractions) <= {0.0, 1.0}


def test_partial_steps_are_few_and_between_full_ones():
    """In every skipped step they would starve the others: the full steps are what the rest depends on."""
    for fraction in (0.1, 0.25):
        made = refresh(40, 0.5, fraction=fraction)
        partial = [f for f in made.fractions if 0 < f < 1]
        assert set(partial) == {fraction}
        assert 0.5 <= sum(partial) <= 3 and sum(f == 1 for f in made.fractions) >= 17
    regular = refresh(20, 0.5, interval=3, fraction=0.25).fractions
    assert [k for k, f in enumerate(regular) if f == 1] == [0, 3, 6, 9, 12, 15, 18, 19]
    assert regular.count(0.25) == 8, "what the full steps leave of the budget"


def test_intervals_are_counted_from_the_warm_up():
    made = refresh(20, 0.5, warmup=4, cooldown=2, interval=5).fractions
    assert [k for k, f in enumerate(made) if f] == [0, 1, 2, 3, 8, 13, 18, 19]
    assert set(made) == {0.0, 1.0}
    every = groups(24, 0.6, interval=5).fractions
    due = [k for k in range(2, 23) if every[k] == 1]
    assert due == [2, 7, 10, 12, 17, 18, 22], "every fifth, and where all groups are due"


@pytest.mark.parametrize("budget", (0.4, 0.5, 0.8))
def test_groups_meet_the_budget_with_divisors(budget):
    made = groups(40, budget)
    assert sum(made.fractions) == pytest.approx(budget * 40, abs=0.6)
    between = made.fractions[2:-1]
    assert between[0] == between[8] == 1 and between[1] == between[3] < between[2] < between[4] < 1


def test_a_velocity_that_does_not_change_is_integrated_exactly():
    """The telescoping identity: cached Euler steps over a gap are one step over the gap."""
    sigmas = torch.linspace(1, 0, 11, dtype=torch.float64)
    velocities, x = Velocities(0.5), torch.randn(1, 6, 3, dtype=torch.float64)
    constant = torch.randn(1, 6, 3, dtype=torch.float64)
    start = x.clone()
    for k in range(10):
        level = float(sigmas[k])
        active = {0: None, 1: None, 5: torch.tensor([1, 4])}
        computed = constant if k in active else None
        v = velocities.step(level, computed, active.get(k))
        x = x + (sigmas[k + 1] - sigmas[k]) * v
    torch.testing.assert_close(x, start - constant, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("marks", "expected"),
    (("#.#.#.#.#.", 0.5), ("#" * 18 + "..##", 2.2 / 3), ("#" * 27 + "..#", 1.0), ("." * 20 + "#" * 17 + "..#", 1.0)),
)
def test_less_of_the_slope_is_trusted_over_longer_gaps(marks, expected):
    """All of it up to a tenth of the run, however many steps are left out before the first."""
    schedule = Schedule(tuple(float(mark == "#") for mark in marks))
    assert schedule.trust == pytest.approx(expected)
    one, several, asked = (
        StepAllocation([1.0] * 99, schedule, *rest, one_step=one_step)
        for rest, one_step in (((), True), ((), False), ((0.9,), True))
    )
    assert (one.trust, several.trust, asked.trust) == (schedule.trust, 0.5, 0.9)


@pytest.mark.parametrize(("forecast", "expected"), [(0.0, 3.0), (0.5, 2.5), (1.0, 2.0)])
def test_forecasts_trust_a_share_of_the_slope(forecast, expected):
    velocities = Velocities(forecast)
    velocities.step(1.0, torch.full((1, 2, 1), 4.0))
    velocities.step(0.8, torch.full((1, 2, 1), 3.0))  # slope 5 a level
    assert velocities.at(0.6).flatten().tolist() == pytest.approx([expected] * 2)
    assert velocities.at(0.3).flatten().tolist() == pytest.approx([expected] * 2)  # no further than they are apart
    velocities.step(0.6, torch.tensor([[[1.0], [9.9]]]), torch.tensor([0]))
    assert velocities.level.tolist() == pytest.approx([0.6, 0.8])
    assert velocities.slope.flatten().tolist() == pytest.approx([10.0, 5.0])
    assert velocities.heat().argmax() == 0


@pytest.mark.parametrize(("share", "tokens", "count"), [
    (0.1, 20, 2), (0.3, 256, 77), (0.05, 64, 3), (0.001, 64, 1), (1.0, 7, 7),
    (0.05, 8192, 384), (0.001, 8192, 128), (0.5, 4096, 2048),
])  # fmt: skip
def test_active_tokens_keep_to_their_share(share, tokens, count):
    """In small grids to the token, in large ones to tiles of 128."""
    assert active_count(share, tokens) == count


def error_of(true, levels, computed):
    """What the solver minimises: moves along the lines between known velocities."""
    kept, total = Velocities(0.5), 0.0
    for last, k in zip((None, *computed), computed, strict=False):
        kept.step(levels[k], true[k][None, None])
        skipped = [] if last is None else range(last + 1, k)
        lines = (kept.velocity + kept.slope * (levels[j] - kept.level) for j in skipped)
        moves = ((levels[j + 1] - levels[j]) * (line[0, 0] - true[j]) for j, line in zip(skipped, lines, strict=True))
        total += float(sum(moves, torch.zeros(true.shape[1], dtype=true.dtype)).norm())
    return total


@pytest.mark.parametrize("count", (2, 3, 4, 6))
def test_no_other_choice_is_better(count):
    generator = torch.Generator().manual_seed(count)
    velocities = torch.randn(8, 5, generator=generator, dtype=torch.float64).cumsum(0)
    levels = [1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.0]
    found = best_steps((velocities @ velocities.T).numpy(), levels, count)
    assert len(found) == count and found[0] == 0 and found[-1] == 7
    every = [(0, *rest, 7) for rest in itertools.combinations(range(1, 7), count - 2)]
    least = min(error_of(velocities, levels, computed) for computed in every)
    assert error_of(velocities, levels, found) == pytest.approx(least, rel=1e-4)


def test_all_steps_and_too_few():
    assert best_steps(np.eye(4), [4, 3, 2, 1, 0], 9) == (0, 1, 2, 3)
    with pytest.raises(SettingError, match="at least 2"):
        best_steps(np.eye(4), [4, 3, 2, 1, 0], 1)


def test_tiles_begin_where_there_are_many_tokens():
    assert active_count(0.2, 4095) == 819 and active_count(0.2, 4096) == 6 * 128


@pytest.mark.parametrize(("by_groups", "active"), [(True, [1]), (False, [0])])
def test_groups_are_ranked_by_relative_change_and_in_full_steps_only(by_groups, active):
    """Token 0 changes by more, and token 1 by a larger share of itself."""
    run = StepAllocation([1.0, 0.8, 0.6, 0.4, 0.2], Schedule((1, 1, 0.5, 0.5)), by_groups=by_groups)
    run.layout = LatentLayout(())
    for k, velocity in enumerate(([10.0, 0.01], [11.0, 0.02])):
        run.begin(k)
        run.step(lambda velocity, x: x, torch.tensor(velocity).view(1, 2, 1), torch.zeros(1, 2, 1))
    order = run.order
    for k in (2, 3):
        run.begin(k)
        assert run.active.tolist() == active and (run.order is order) is by_groups
        run.step(lambda velocity, x: x, torch.tensor([12.0, 0.03]).view(1, 2, 1), torch.zeros(1, 2, 1))


def test_heat_of_small_velocities_and_of_a_level_that_comes_twice():
    velocities = Velocities()
    velocities.step(1.0, torch.full((1, 1, 1), 0.01))
    velocities.step(0.5, torch.full((1, 1, 1), 0.02))
    assert velocities.heat().item() == pytest.approx(0.02) and velocities.heat(relative=True).item() == pytest.approx(1)
    velocities.step(0.5, torch.full((1, 1, 1), 0.03))
    assert velocities.at(0.3).isfinite().all() and velocities.heat().isfinite().all()


def test_a_small_budget_is_spent_at_distances_that_grow():
    for steps, budget in ((40, 0.25), (20, 0.25), (50, 0.1), (100, 0.3)):
        computed = [k for k, share in enumerate(default_schedule(steps, budget).fractions) if share == 1]
        gaps = [after - before for before, after in itertools.pairwise(computed)]
        assert computed[0] == 0 and len(computed) == round(budget * steps) and computed[-1] == round(0.9 * steps)
        assert all(after >= before - 1 for before, after in itertools.pairwise(gaps)), "but for what is rounded"
    assert growing(3, 0.9).fractions == (1.0, 1.0, 1.0) and sum(growing(10, 0.01).fractions) == 2
    assert default_schedule(16, 0.25, bends=True) == equal_gaps(16, 0.25) != growing(16, 0.25)
    assert default_schedule(40, 0.5) == refresh(40, 0.5, 8)
