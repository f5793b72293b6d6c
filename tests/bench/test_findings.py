"""Who wins and by how much: what the index says of the rows of each benchmark, where ours wins, ties and loses."""

import dataclasses
import re
from pathlib import Path

import pytest

from mmaccel.bench import findings, index
from mmaccel.bench.benchmark import Section
from mmaccel.bench.winners import Figure, ahead, speed, who_wins
from mmaccel.cli import bench as bench_commands
from mmaccel.comparison import results

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"
RIGHT = Figure("right, mean", lambda row: row["quality"], " points", scale=100)
WORST = Figure("right, worst", lambda row: row.get("quality_worst"), " points", scale=100)
NEARNESS = Figure("distance", lambda row: row["quality"], higher_is_better=False)
SPEED = speed("speed")
SECTION = Section(lambda rows: {"": rows}, "none", form=".1%", figures=(RIGHT, WORST))
PLAIN = "the plain model"


def row(method, speedup=2.0, quality=0.9, kind="method", **more):
    given = {"modality": "x", "model": "m", "settings": {}, "exact": False, "seeds": [0], "kind": kind}
    measured = {"speedup": speedup, "quality": quality, "wall_seconds": 1.0, "baseline_seconds": speedup}
    return results.row(**{**given, **measured, "baseline_quality": 0.9, "method": method, **more})


def said(*rows, section=SECTION):
    return findings.of_table(section, list(rows)).splitlines()


def name(row):
    return row["method"]


@pytest.mark.parametrize(
    ("ours", "told"),
    (
        (3.0, "- Speed: a wins; ours is 1.50x as fast as b."),
        (2.05, "- Speed: nobody wins; ours, a, is 1.02x as fast as b."),
        (1.0, "- Speed: b wins; ours, a, is 0.50x as fast as b."),
    ),
)
def test_speeds_are_ratios_and_three_percent_are_a_tie(ours, told):
    assert who_wins(SPEED, row("a", ours), [[row("b", 2.0), row("slower", 1.5)]], name) == told


@pytest.mark.parametrize(
    ("ours", "told"),
    (
        (12.0, "- Distance: a wins; ours is -1.0 to b and -3.0 to c."),
        (13.05, "- Distance: nobody wins; ours, a, is +0.1 to b and -1.9 to c."),
        (14.0, "- Distance: b wins; ours, a, is +1.0 to b and -1.0 to c."),
    ),
)
def test_where_less_is_better_the_sign_stays_and_the_winner_turns(ours, told):
    others = [[row("b", quality=13.0), row("far", quality=20.0)], [row("c", quality=15.0)]]
    assert who_wins(NEARNESS, row("a", quality=ours), others, name) == told


def test_nothing_is_said_of_what_was_not_measured():
    assert who_wins(WORST, row("a"), [[row("b", quality_worst=0.5)]], name) == ""
    assert who_wins(WORST, row("a", quality_worst=0.5), [[row("b")], []], name) == ""
    assert ahead(WORST, [(row("a"), row("b"))], name) == "" == ahead(RIGHT, [], name)


def test_of_equals_the_fastest_is_the_best():
    assert RIGHT.best([row("slow", 1.0), row("fast", 3.0), row("low", 9.0, 0.1)])["method"] == "fast"


def test_over_cases_wins_losses_the_mean_and_the_worst_are_told():
    cases = [(row("a", 4.0), row("b", 1.0)), (row("c", 1.0), row("d", 4.0)), (row("e", 1.0), row("f", 1.0))]
    assert ahead(SPEED, cases, name) == "speed ahead in 1 and behind in 1 of 3 (1.00x, at worst 0.25x with c)"
    assert ahead(SPEED, cases[:1], name) == "speed ahead in 1 of 1 (4.00x)"
    assert ahead(SPEED, cases[2:], name) == "speed ahead in none of 1 (1.00x)"


def test_the_fastest_at_no_loss_stand_beside_each_other_and_the_plain_model():
    ours, lossy = row("x.A", 2.0, 0.9, speedup_worst=1.2), row("x.Lossy", 9.0, 0.8)
    others = [row("fewer frames", 4.0, 0.95, "simple", speedup_worst=0.6), row("theirs", 1.0, 0.9, "rival")]
    first, second, *_ = said(ours, lossy, *others)
    told = "0.50x as fast as fewer frames, 2.00x as fast as theirs and 2.00x as fast as the plain model."
    assert first == f"- Speed at no loss: fewer frames wins; ours, x.A, is {told}"
    assert second == (
        "- Speed at no loss, worst sample: x.A wins; ours is 2.00x as fast as fewer frames and 1.20x as fast as"
        f" {PLAIN}."
    )


def test_who_never_is_as_good_is_told_with_what_that_costs():
    rows = row("x.A", 1.5, 0.9), row("fewer frames", 3.0, 0.85, "simple"), row("fewer frames", 9.0, 0.1, "simple")
    assert said(*rows)[:2] == [
        f"- Speed at no loss: x.A wins; ours is 1.50x as fast as {PLAIN}.",
        f"- At a loss only: fewer frames, the best of its kind, -5.0 points to {PLAIN}, 3.00x as fast.",
    ]
    lossy = said(row("x.A", 9.0, 0.8), row("fewer frames", 3.0, 0.9, "simple"))
    assert lossy[:2] == [
        f"- Speed at no loss: fewer frames wins, 3.00x as fast as {PLAIN}.",
        f"- At a loss only: x.A, the best of ours, -10.0 points to {PLAIN}, 9.00x as fast.",
    ]
    slow = said(row("x.A", 9.0, 0.8), row("theirs", 0.6, 0.9, "rival"))
    assert slow[0] == "- Speed at no loss: the plain model wins."


def test_ours_is_one_row_and_each_other_is_at_its_best_on_every_figure():
    ours = row("x.A", 2.0, 0.9, quality_worst=0.5)
    others = [row("one", 2.0, 0.85, "simple", quality_worst=0.2), row("two", 2.0, 0.7, "simple", quality_worst=0.6)]
    lines = said(ours, row("x.Steady", 2.0, 0.8, quality_worst=0.9), *others, row("late", 0.5, 1.0, "simple"))
    assert lines[-2:] == [
        "- Right, mean: x.A wins; ours is +5.0 points to one.",
        "- Right, worst: two wins; ours, x.A, is -10.0 points to two.",
    ]


def test_neutral_and_plain_rows_win_nothing():
    neutral, plain = row("x.Neutral", 5.0, 0.9, exact=True, work_ratio=1.0), row("plain", 1.0, 0.9, "plain")
    assert said(neutral, plain) == []
    unjudged = row("x.Exact", 3.0, None, exact=True)
    assert said(neutral, plain, unjudged) == [f"- Speed at no loss: x.Exact wins; ours is 3.00x as fast as {PLAIN}."]


def test_a_section_can_group_the_others_and_say_more():
    section = dataclasses.replace(SECTION, versus=lambda row: row["method"] if row["method"] < "x" else "")
    lines = said(row("x.A"), row("a", 1.0), row("b", 4.0), section=section)
    told = "2.00x as fast as a, 0.50x as fast as b and 2.00x as fast as the plain model."
    assert lines[0] == f"- Speed at no loss: b wins; ours, x.A, is {told}"
    assert findings.told(dataclasses.replace(SECTION, said=lambda rows: f"{len(rows)} rows"), [1, 2]) == "2 rows"


def test_code_that_can_be_typed_is_shown_as_code():
    typed = [findings.typed(text) for text in ("vlm.HoliTom(keep=0.1)", "Halton() + Late()", "fewer frames(step=2)")]
    assert typed == ["`vlm.HoliTom(keep=0.1)`", "`Halton() + Late()`", "fewer frames(step=2)"]


# Every benchmark, from the rows that are committed


@pytest.mark.parametrize("benchmark", bench_commands.all_benchmarks(), ids=lambda benchmark: benchmark.name)
def test_the_index_says_who_wins_for_every_benchmark(benchmark):
    found = results.load(FOLDER / f"{benchmark.name}.json")
    section, rows = benchmark.section, found["rows"]
    tables = [findings.told(section, group) for group in section.groups(rows).values()]
    lines = [line for text in [*tables, section.more(rows)] for line in text.splitlines()]
    assert lines and all(re.fullmatch(r"- .*\.", line) for line in lines)
    assert any(re.search(r" wins.*\d|ahead in .*\d", line) for line in lines)
    assert all(line in index.page([(benchmark, found)]) for line in lines)


def benchmark(name):
    return bench_commands.benchmark_of(name).section


def test_a_smaller_window_can_win_over_choosing_keys():
    def policy(name, quality, speedup, method="vlm.CompressKV", **more):
        settings = {"policy": name, "budget": 0.25}
        more |= {"worst_text": "code", "loss_added": {"code": quality - 1}}
        return row(method, speedup, quality, None, settings=settings, baseline_quality=1.0, work_ratio=0.5, **more)

    section = benchmark("language")
    window, chosen = policy("streaming", 1.1, 1.5), policy("snap_kv", 1.2, 1.5)
    lines = section.said([window, chosen]).splitlines()
    assert any("Loss, mean: the plain model wins; ours" in line and "+0.100 nats to" in line for line in lines)
    assert not any(line.startswith("- Speed at no loss") for line in lines), "both lose something"
    text = section.said([window, policy("snap_kv", 0.9, 1.5)])
    assert "Loss, mean: `vlm.CompressKV(budget=0.25)` wins; ours is -0.200 nats to" in text
    worst = {"worst_text": "code", "loss_added": {"code": -0.1}}
    dropping = row("vlm.PrefillDrop", 2.0, 0.9, settings={"keep": 0.3}, baseline_quality=1.0, **worst)
    assert "2.00x as fast as the plain model" in section.said([dropping]), "has no policy and is ours"


def test_tokens_are_compared_at_equal_shares_and_far_ones_are_left_out():
    def asked(method, share, quality, kind="method", worst=0.5, **settings):
        more = {"visual_share": share, "share": 0.1, "quality_worst": worst, "settings": settings}
        return row(method, 2.0, quality, kind, **more)

    few = asked("fewer frames", 0.125, 0.6, "simple", 0.2, step=8)
    best, other = asked("vlm.HoliTom", 0.1, 0.8, keep=0.1), asked("vlm.FastV", 0.4, 0.9, keep=0.1)
    lines = benchmark("vlm").said([few, best, other]).splitlines()
    assert lines[-1] == (
        "- At equal tokens, the best of ours against fewer frames: questions answered right, mean ahead in 1 of 1"
        " (+20.0 points); questions answered right, worst kind ahead in 1 of 1 (+30.0 points)."
    )
    beaten = benchmark("vlm").said([few, asked("vlm.HoliTom", 0.1, 0.5, keep=0.1)])
    assert "mean ahead in none and behind in 1 of 1 (-10.0 points)" in beaten
    assert "equal tokens" not in benchmark("vlm").said([few, other]), "a method that keeps four times as much"


def test_streams_are_compared_by_what_a_listener_notices():
    def stream(method, wrong, seconds, lag, kind=None, **more):
        figures = {"real_time_factor": seconds, "promised_lag": {"ready_p50": lag, "ready_p90": lag}}
        given = {"table": "streams", "quality_worst": wrong, **figures, **more}
        return row(method, None, wrong, kind, baseline_quality=0.05, **given)

    ours = stream("LocalAgreement", 0.05, 0.3, 0.9)
    package, chunks = stream("moonshine-voice 1.0", 0.06, 0.4, 2.0), stream("fixed chunks", 0.5, 0.1, 0.5)
    lines = benchmark("speech").said([ours, package, chunks]).splitlines()
    assert [line.split(": ")[1].split(" wins")[0] for line in lines] == [
        "LocalAgreement",
        "LocalAgreement",
        "fixed chunks",
        "fixed chunks",
        "fixed chunks",
    ]
    assert lines[-1].endswith("is 1.33x as fast as moonshine-voice 1.0 and 0.33x as fast as fixed chunks.")


def test_the_best_drafter_stands_beside_prompt_lookup():
    def drafted(method, kind, *speedups):
        by_kind = {name: {"speedup": each} for name, each in zip("ab", speedups, strict=True)}
        return row(method, sum(speedups) / 2, None, kind, by_kind=by_kind, mode="greedy")

    ours, lookup = drafted("vlm.FusedDraft", "method", 3.0, 1.0), drafted("prompt lookup", "rival", 2.0, 1.5)
    mean, worst, _ = benchmark("text").said([lookup, ours, drafted("vlm.X", "method", 1.0, 1.0)]).splitlines()
    assert mean.startswith("- Speed, mean of all kinds: `FusedDraft` wins; ours is 1.14x as fast as prompt lookup")
    assert worst.startswith("- Speed, worst kind: prompt lookup wins; ours, `FusedDraft`, is 0.67x as fast as")


def test_pictures_without_drafts_can_win():
    def drawn(window, speedup, batch):
        settings = {"window": window, "coupling": "maximal", "init": "uniform"}
        return row("image.SpeculativeJacobi", speedup, None, None, settings=settings, batch=batch, guidance=2.0)

    rows = [drawn("auto", 2.0, 1), drawn(1, 1.0, 1), drawn("auto", 1.0, 4), drawn(1, 1.25, 4), drawn(8, 9.0, 4)]
    plain, single = benchmark("image").more(rows).splitlines()
    assert plain.endswith(
        "against the plain run: speed ahead in 1 of 2 (1.41x, at worst 1.00x with batch 4, guidance 2)."
    )
    assert "against no drafts: speed ahead in 1 and behind in 1 of 2" in single and "at worst 0.80x" in single


def test_kernels_that_lose_to_torch_say_so():
    names = ("kernels.verify_attention", "kernels.gone")  # a measured file may hold ops that are no more
    found = [
        row(name, each, 0.0, None, model=f"[{each}] float32", settings={"n": each})
        for name in names
        for each in (2.0, 0.5)
    ]
    assert benchmark("kernels").more(found) == (
        "- `kernels.verify_attention` against torch's own: speed ahead in 1 and behind in 1 of 2 (1.00x, at worst 0.50x"
        " with n 0.5, float32)."
    )
