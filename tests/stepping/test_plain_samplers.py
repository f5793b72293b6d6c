"""Budget, forecast, correction and reuse with samplers of a few lines over a velocity field in closed form."""

import pytest
import torch

from mmaccel.errors import SettingError
from mmaccel.stepping import EasyReuse, LatentLayout, SamplerRun, StepAllocation, StepReuse, Velocities, chosen, refresh

STEPS = 40
MEAN, SPREAD = torch.randn(2, 1, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
START = torch.randn(1, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def field(x, level):
    """Velocity of flow matching from noise (level 1) to normal data of a mean and a spread for each number."""
    data, clean = (0.5 + SPREAD.abs()) ** 2, 1 - level
    return -MEAN + (level - clean * data) / (clean**2 * data + level**2) * (x - clean * MEAN)


def levels_of(steps, shift=3.0):
    even = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return (shift * even / (1 + (shift - 1) * even)).tolist()


class Euler:
    def __init__(self, steps=STEPS):
        self.levels = levels_of(steps)

    def step(self, velocity, k, x):
        return x + (self.levels[k + 1] - self.levels[k]) * velocity


class TwoStep(Euler):
    """Adams and Bashforth's second order: goes by this velocity and the last one, which it keeps."""

    def __init__(self, steps=STEPS):
        super().__init__(steps)
        self.past = []

    def step(self, velocity, k, x):
        slope = 0.0
        if self.past:
            slope = (velocity - self.past[-1]) / (self.levels[k] - self.levels[k - 1])
        self.past.append(velocity)
        move = self.levels[k + 1] - self.levels[k]
        return x + move * (velocity + slope * move / 2)


def plain(sampler):
    x = START
    for k, level in enumerate(sampler.levels[:-1]):
        x = sampler.step(field(x, level), k, x)
    return x


def allocated(sampler, schedule, **settings):
    """A run that computes what the schedule pays for, and how many velocities that were."""
    run, x, computed = StepAllocation(sampler.levels, schedule, sampler=sampler, **settings), START, 0
    for k, level in enumerate(sampler.levels[:-1]):
        velocity = field(x, level) if run.begin(k) else None
        computed += velocity is not None
        x = run.step(lambda velocity, x, k=k: sampler.step(velocity, k, x), velocity, x)
    return x, computed


CONVERGED = plain(TwoStep(2000))


def error(x, reference=CONVERGED):
    return float((x - reference).square().mean().sqrt())


def test_the_samplers_converge():
    assert error(plain(Euler(2000))) < 2e-3
    assert error(plain(TwoStep(160))) < error(plain(TwoStep(40))) / 8 < error(plain(Euler(40))) / 8


@pytest.mark.parametrize("sampler", (Euler, TwoStep))
@pytest.mark.parametrize("budget", (0.25, 0.5, 0.75))
def test_a_budget_is_better_spent_than_on_fewer_steps(sampler, budget):
    x, computed = allocated(sampler(), refresh(STEPS, budget))
    assert computed == budget * STEPS
    assert error(x) < error(plain(sampler(computed)))


@pytest.mark.parametrize("sampler", (Euler, TwoStep))
def test_correction_makes_up_for_what_forecasts_missed(sampler):
    reference = plain(sampler())
    for budget in (0.25, 0.5, 0.75):
        schedule = refresh(STEPS, budget)
        corrected, left = (error(allocated(sampler(), schedule, correct=c)[0], reference) for c in (True, False))
        assert 0 < corrected < left / 2


@pytest.mark.parametrize("sampler", (Euler, TwoStep))
def test_more_budget_is_nearer_to_the_plain_run(sampler):
    reference = plain(sampler())
    found = [error(allocated(sampler(), refresh(STEPS, budget))[0], reference) for budget in (0.25, 0.5, 0.75, 1.0)]
    assert found[0] > found[1] > found[2] > found[3] == 0


def test_half_the_slope_is_a_better_forecast_than_none():
    reference, schedule = plain(Euler()), refresh(STEPS, 0.5)
    none, half = (allocated(Euler(), schedule, forecast=share, correct=False)[0] for share in (0.0, 0.5))
    assert error(half, reference) < error(none, reference)


def test_the_past_of_a_sampler_is_corrected_with_its_sample():
    """A straight velocity is interpolated exactly, and the sampler then goes by what it would have seen."""
    runs = []
    for computed in (tuple(range(6)), (0, 1, 4, 5)):
        sampler, x = TwoStep(6), START
        run = StepAllocation(sampler.levels, chosen(6, computed), forecast=0.0, sampler=sampler)
        for k, level in enumerate(sampler.levels[:-1]):
            velocity = MEAN + level * SPREAD if run.begin(k) else None
            x = run.step(lambda velocity, x, k=k, own=sampler: own.step(velocity, k, x), velocity, x)
        runs.append((x, sampler.past))
    torch.testing.assert_close(runs[1][0], runs[0][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.stack(runs[1][1]), torch.stack(runs[0][1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", ("hottest", "random"))
def test_partial_steps_compute_the_hottest_tokens(tokens):
    sampler, run_x = Euler(), START
    run = StepAllocation(sampler.levels, refresh(STEPS, 0.6, fraction=0.34), tokens=tokens)
    run.layout = LatentLayout(())
    seen = []
    for k, level in enumerate(sampler.levels[:-1]):
        share = run.begin(k)
        if 0 < share < 1:
            heat = run.velocities.heat()
            seen.append((run.active.tolist(), heat.topk(2).indices.sort().values.tolist()))
        velocity = field(run_x, level) if share else None
        run_x = run.step(lambda velocity, x, k=k: sampler.step(velocity, k, x), velocity, run_x)
    assert seen and all(len(active) == 2 for active, _ in seen)
    assert all(active == hottest for active, hottest in seen) == (tokens == "hottest")
    assert error(run_x) < error(plain(Euler(20)))


def test_another_model_begins_anew_with_what_is_left_of_the_budget():
    first = refresh(STEPS, 0.5)
    rest = first.resolved(10, 0.5, refresh)
    assert rest.fractions[:10] == first.fractions[:10] and rest.fractions[10] == 1
    assert sum(rest.fractions) == pytest.approx(sum(first.fractions), abs=0.6)
    run = StepAllocation(levels_of(STEPS), rest)
    run.begin(0)
    run.step(lambda velocity, x: x, START, START)
    assert run.begin(1) == rest.fractions[1]
    run.restart()
    assert run.begin(3) == 1.0, "nothing to forecast from"


def test_a_run_that_begins_anew_keeps_its_settings():
    sampler = TwoStep(4)
    run = StepAllocation(sampler.levels, chosen(4, (0, 3)), forecast=0.25, sampler=sampler)
    run.begin(0)
    run.step(lambda velocity, x: sampler.step(velocity, 0, x), START, START)
    assert run.nbytes() > run.velocities.nbytes() > 0, "the steps that may be made again are counted"
    run.restart()
    assert run.velocities.forecast == 0.25 and run.replay.sampler is sampler
    assert run.nbytes() == 0 and not run.replay.made
    uncorrected = StepAllocation(sampler.levels, chosen(4, (0, 3)), correct=False)
    uncorrected.restart()
    assert uncorrected.replay is None


def test_random_tokens_are_the_same_in_every_run_and_draw_nothing_of_the_callers():
    found, state = [], torch.get_rng_state()
    for _ in range(2):
        run, x = StepAllocation(levels_of(STEPS), refresh(STEPS, 0.6, fraction=0.34), tokens="random"), START
        run.layout = LatentLayout(())
        for k, level in enumerate(run.levels[:-1]):
            share = run.begin(k)
            found.append(None if run.active is None else run.active.tolist())
            x = run.step(lambda velocity, x: x, field(x, level) if share else None, x)
    assert found[:STEPS] == found[STEPS:] and torch.equal(torch.get_rng_state(), state)
    assert len({str(active) for active in found if active}) > 1


@pytest.mark.parametrize("schedule", (chosen(6, (0, 3, 5)), refresh(12, 0.6, fraction=0.34)), ids=("whole", "partial"))
def test_numbers_keep_their_type(schedule):
    """Velocities and samples of half precision, also where steps are made again and some tokens computed."""
    levels = levels_of(len(schedule.fractions))
    run, x, seen = StepAllocation(levels, schedule), START.bfloat16(), set()
    run.layout = LatentLayout(())

    def make(velocity, sample):
        seen.add((velocity.dtype, sample.dtype))
        return sample + 0.1 * velocity

    for k, level in enumerate(levels[:-1]):
        velocity = field(x.double(), level).bfloat16() if run.begin(k) else None
        x = run.step(make, velocity, x)
    assert seen == {(torch.bfloat16, torch.bfloat16)} and x.dtype == torch.bfloat16


def test_a_model_may_write_its_next_output_over_the_last():
    """As compiled ones do with CUDA graphs."""
    sampler, schedule, x, place = Euler(), refresh(STEPS, 0.5), START, torch.empty_like(START)
    expected, _ = allocated(Euler(), schedule)
    run = StepAllocation(sampler.levels, schedule, sampler=sampler)
    for k, level in enumerate(sampler.levels[:-1]):
        velocity = place.copy_(field(x, level)) if run.begin(k) else None
        x = run.step(lambda velocity, x, k=k: sampler.step(velocity, k, x), velocity, x)
    assert torch.equal(x, expected)


def test_a_variance_behind_the_velocity_is_none_of_the_sample():
    """As in DeepFloyd IF, whose sampler leaves it out; in skipped steps the model's last output is given again."""
    sampler, schedule, x = Euler(), refresh(STEPS, 0.5), START
    run = StepAllocation(sampler.levels, schedule, sampler=sampler)
    output = None
    for k, level in enumerate(sampler.levels[:-1]):
        output = torch.cat([field(x, level), START], -1) if run.begin(k) else output
        x = run.step(lambda output, x, k=k: sampler.step(output[..., :3], k, x), output, x)
    torch.testing.assert_close(x, allocated(Euler(), schedule)[0])


def test_messages_say_what_to_change():
    with pytest.raises(
        SettingError, match="3 steps are too few for a warm-up of 3 and a cool-down of 2: run at least 5"
    ):
        refresh(3, 0.5, warmup=3, cooldown=2)
    assert sum(refresh(5, 0.5, warmup=3, cooldown=2).fractions) == 5
    with pytest.raises(SettingError, match="step 6 is to be computed, and the run has only 6 steps.*calibrate with 6"):
        chosen(6, (0, 6))
    assert chosen(7, (0, 6)).fractions == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("threshold", (0.0, 0.02, 0.1))
def test_easy_reuse_with_two_branches(threshold):
    """Guidance over two branches: one decision per step, and branches that remember their own."""
    sampler, x, done = Euler(), START, []
    run = SamplerRun(STEPS, sampler.levels)
    cache = EasyReuse(run, threshold, warmup=3)

    def model(shift, level):
        return cache.answer([x], lambda: field(x - shift, level))

    for run.step, level in enumerate(sampler.levels[:-1]):
        outputs = []
        for run.branch in range(2):
            output, share = model(0.1 * run.branch, level)
            outputs.append(output)
            done.append(share)
        x = sampler.step(outputs[1] + 2 * (outputs[0] - outputs[1]), run.step, x)
    assert done[::2] == done[1::2] and (sum(done) == 80) == (threshold == 0)
    wanted = START
    for k, level in enumerate(sampler.levels[:-1]):
        one, other = field(wanted, level), field(wanted - 0.1, level)
        wanted = sampler.step(other + 2 * (one - other), k, wanted)
    assert error(x, wanted) <= threshold * 4


def test_what_a_model_returns_is_reused_as_it_is():
    run = SamplerRun(4, [1.0, 0.75, 0.5, 0.25, 0.0])
    cache = EasyReuse(run, threshold=9.0, warmup=2, cooldown=0)
    for run.step in range(4):
        run.branch, x = 0, torch.full((2,), float(run.step))
        output, _ = cache.answer([x], lambda x=x: 2 * x)
        assert output.tolist() == [min(run.step, 1) * 2.0] * 2
        output.zero_()  # what is handed out is the caller's


def test_accumulated_changes_decide_when_they_reach_the_threshold():
    """TeaCache's rule, on a signal that grows by a tenth in every step."""
    run = SamplerRun(12, [0.0] * 13)
    rule, reused = StepReuse(run, threshold=0.35, warmup=2, cooldown=1), []
    for run.step in range(12):
        run.branch = 0
        rule.begin()
        rule.accumulate([torch.tensor([1.1**run.step])])
        if not rule.skips:
            rule.computed()
        reused.append(rule.reuse)
    assert [k for k, r in enumerate(reused) if not r] == [0, 1, 5, 9, 11]
    assert rule.smallest == pytest.approx(0.4)


def test_velocities_say_whether_there_are_any():
    velocities = Velocities()
    assert not velocities.is_known and velocities.nbytes() == 0
    velocities.step(1.0, torch.zeros(1, 2, 3))
    assert velocities.is_known and velocities.nbytes() == 4 * (6 + 6 + 6 + 2)


def test_a_parabola_is_followed_where_the_velocity_bends():
    """With three computed velocities of a parabola its values and means are exact, at levels in between too."""

    def bent(level):
        return torch.tensor([[[1 + 2 * level - 3 * level**2, level]]], dtype=torch.float64)

    velocities = Velocities()
    for level in (1.0, 0.9, 0.5):
        velocities.step(level, bent(level))
    torch.testing.assert_close(velocities.on_curve(0.7, 0.7), bent(0.7), rtol=1e-6, atol=1e-6)
    straight = Velocities(curved=False)
    for level in (1.0, 0.9, 0.5):
        straight.step(level, bent(level))
    torch.testing.assert_close(straight.on_curve(0.7, 0.7), (bent(0.5) + bent(0.9)) / 2, rtol=1e-6, atol=1e-6)
    mean = torch.stack([bent(0.7 - 0.2 * (i + 0.5) / 1000) for i in range(1000)]).mean(0)
    torch.testing.assert_close(velocities.on_curve(0.7, 0.5), mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("budget", (0.25, 0.5, 0.9))
def test_half_of_the_steps_come_nearer_to_the_converged_run_than_all_of_the_plain_one(budget):
    sampler = Euler()
    nearer, computed = allocated(sampler, refresh(STEPS, budget), target="converged")
    assert computed == round(budget * STEPS) and error(nearer) < error(plain(sampler)) / 4
