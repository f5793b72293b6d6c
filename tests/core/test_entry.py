"""What a comparison says of one entry, from runs that are made up; and who runs when."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from mmaccel.comparison import results
from mmaccel.comparison.comparison import Comparison
from mmaccel.comparison.entry import PLAIN, Entry, Sample
from mmaccel.comparison.page import page
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Metric, Shown, Workload
from mmaccel.image import SpeculativeJacobi, ZipAR
from mmaccel.plan import Plan

EXACT, LOSSY = SpeculativeJacobi(window=8), ZipAR(window=2)


def planned(*methods):
    return Plan(methods, "janus")


class Trial:
    """Outputs are numbers; the metric is how far they are from the plain one."""

    adapter = SimpleNamespace(modality="image", parts=list)
    unit, model, seedless, inputs, target, draws = "steps", "m", "", {}, object(), False

    def __init__(self, higher_is_better=False, draws=False):
        self.metrics = (Metric("far", "far", "the distance", higher_is_better=higher_is_better), Metric("x", "x", "x"))
        self.draws = draws

    def equal(self, one, other):
        return one == other

    def judge(self, plain, other):
        return {"far": float(abs(plain - other))}

    def visual_share(self, fewer):
        return None


TRIAL = Trial()


def sample(seconds=1.0, seed=0, engaged=True, work_ratio=0.5, warnings=(), peak_bytes=None, extra=0):
    report = {"engaged": engaged, "work_ratio": work_ratio, "warnings": list(warnings), "peak_extra_bytes": extra}
    return Sample(seed, seconds, report, peak_bytes)


def entry(equal=(True,), samples=None, plan=None, kind="method", **more):
    """Of one output a seed, each equal to the plain one or not."""
    made = Entry("x", kind, planned(EXACT) if plan is None and kind == "method" else plan, **more)
    made.samples = [sample(seed=seed) for seed in range(len(equal))] if samples is None else samples
    for seed, same in enumerate(equal):
        made.judged(TRIAL, seed, 1, 1 if same else 2 + seed)
    return made


def row(made, plain_seconds=None, trial=TRIAL):
    plain = entry([True] * len(made.equal), kind="plain")
    plain.samples = [Sample(t.seed, s, {}) for t, s in zip(made.samples, plain_seconds or [1.0] * 99, strict=False)]
    return made.row(trial, "m", plain)


# Exactness


@pytest.mark.parametrize(
    ("methods", "exact"), (((EXACT,), True), ((LOSSY,), False), ((EXACT, LOSSY), False), ((LOSSY, EXACT), False))
)
def test_a_plan_is_exact_if_all_its_methods_are(methods, exact):
    made = planned(*methods)
    assert made.exact == exact and Plan.from_dict(made.to_dict()).exact == exact
    word = "exact" if exact else "lossy"
    lines = [f"plan for janus ({word})", *(f"  {m}: {'exact' if m.exact else 'lossy'}" for m in methods)]
    assert str(made).splitlines() == lines
    assert entry(plan=made).exact == exact and row(entry(plan=made))["exact"] == exact


@pytest.mark.parametrize(("kind", "exact"), (("plain", True), ("simple", False)))
def test_fewer_steps_promise_nothing(kind, exact):
    made = row(entry(kind=kind, fewer=3 if kind == "simple" else None))
    assert made["exact"] == exact and not made["same_distribution"]


@pytest.mark.parametrize("draws", (True, False))
@pytest.mark.parametrize(("plan", "kind"), ((planned(EXACT), "method"), (planned(LOSSY), "method"), (None, "simple")))
def test_only_what_is_exact_draws_from_the_same_distribution(draws, plan, kind):
    made = row(entry([False], plan=plan, kind=kind), trial=Trial(draws=draws))
    assert made["same_distribution"] == (draws and plan is not None and plan.exact)


@pytest.mark.parametrize("equal", ([True, True], [True, False], [False, True], [False, False]))
def test_one_seed_that_differs_is_a_difference(equal):
    made = row(entry(equal))
    assert made["equal"] == all(equal)
    broken = any("exact, but gave another output" in text for text in made["warnings"])
    assert broken != all(equal), "an exact method that draws nothing must be equal for every seed"
    assert not any("exact, but" in text for text in row(entry(equal), trial=Trial(draws=True))["warnings"])
    lossy = row(entry(equal, plan=planned(LOSSY)))
    assert not lossy["warnings"] and lossy["equal"] == all(equal)


# Idleness


IDLE, WORK = {"engaged": False, "work_ratio": 1.0}, {"engaged": True, "work_ratio": 0.5}


@pytest.mark.parametrize(
    ("equal", "reports", "idle"),
    (
        ([True, True], [IDLE, IDLE], "its report says that it never engaged"),
        ([True, False], [IDLE, IDLE], "its report says that it never engaged"),
        ([True, True], [IDLE, WORK], None),
        ([True, True], [WORK, IDLE], None),
        ([True, False], [{**IDLE, "work_ratio": None}] * 2, None),
        ([True, True], [{**IDLE, "work_ratio": None}] * 2, "its report says that it never engaged"),
        ([False, False], [IDLE, {**IDLE, "work_ratio": 0.9}], None),
        ([False, False], [IDLE, {**IDLE, "work_ratio": 1.2}], "its report says that it never engaged"),
        ([True, True], [{**WORK, "work_ratio": 1}] * 2, "as much work as the plain run, and the same output"),
        ([True, False], [{**WORK, "work_ratio": 1}] * 2, None),
        ([True, True], [{**WORK, "work_ratio": 1}, WORK], None),
        ([True, True], [{**WORK, "work_ratio": None}] * 2, None),
    ),
)
def test_what_did_nothing(equal, reports, idle):
    made = entry(equal, [sample(seed=seed, **report) for seed, report in enumerate(reports)])
    assert made.idle == idle == row(made)["idle"]
    made.kind = "simple"
    assert made.idle is None


def test_the_reason_of_the_report_comes_first_and_each_warning_once():
    samples = [
        sample(engaged=False, work_ratio=1.0, warnings=("why", "more")),
        sample(engaged=False, warnings=("why", "new")),
    ]
    made = entry([True], samples)
    assert made.idle == "why" and made.warnings == ["why", "more", "new"]
    assert row(made)["warnings"] == ["why", "more", "new"]


# Figures


def test_time_is_the_median_of_the_ratios_within_rounds():
    seconds, plain = [1.0, 2.0, 4.0, 8.0], [2.0, 2.0, 12.0, 80.0]
    made = row(entry([True], [sample(s) for s in seconds]), plain)
    assert made["wall_seconds"] == 3.0 and made["baseline_seconds"] == 7.0
    assert made["speedup"] == 2.5, "the ratios are 2, 1, 3 and 10; of an even count the middle two are averaged"
    assert made["speedup_range"] == [1.0, 10.0] and made["wall_range"] == [1.0, 8.0]
    assert made["samples"] == [{"seed": 0, "seconds": s, "ratio": p / s} for s, p in zip(seconds, plain, strict=True)]


def test_work_is_a_mean_and_memory_a_peak():
    samples = [
        sample(work_ratio=0.25, extra=5, peak_bytes=9),
        sample(work_ratio=None, extra=7),
        sample(extra=6, peak_bytes=3),
    ]
    made = row(entry([True], samples))
    assert made["work_ratio"] == 0.375 and made["peak_extra_bytes"] == 7 and made["peak_bytes"] == 9
    assert row(entry([True], [sample(work_ratio=None)]))["work_ratio"] is None
    assert row(entry([True], [sample()]))["peak_bytes"] is None


@pytest.mark.parametrize(("higher_is_better", "worst"), ((True, 1), (False, 2)))
def test_the_worst_seed_is_kept_and_shown(higher_is_better, worst):
    trial = Trial(higher_is_better)
    made = Entry("x", "method", planned(LOSSY), samples=[sample(seed=seed) for seed in range(4)])
    for seed, output in enumerate((5, 3, 9, 4)):
        made.judged(trial, seed, 1, output)
    assert made.worst == (worst, 1, {1: 3, 2: 9}[worst]) and made.worst_seed(trial) == worst
    found = row(made, trial=trial)
    assert found["worst_seed"] == worst and found["quality_worst"] == {1: 2.0, 2: 8.0}[worst]
    assert (
        found["quality"] == (4 + 2 + 8 + 3) / 4 and found["baseline_quality"] == 0.0 and found["seeds"] == [0, 1, 2, 3]
    )
    assert found["metrics"] == {"far": 4.25, "x": None}


def test_how_a_row_names_its_method():
    assert row(entry(kind="plain"))["method"] == "plain" and row(entry(kind="plain"))["settings"] == {}
    fewer = row(entry(kind="simple", fewer=3))
    assert (fewer["method"], fewer["settings"], fewer["kind"]) == ("fewer steps", {"steps": 3}, "simple")
    one = row(entry(plan=planned(LOSSY)))
    assert (one["method"], one["settings"]) == ("image.ZipAR", LOSSY.settings())
    two = row(entry(plan=planned(EXACT, LOSSY)))
    assert two["method"] == "image.SpeculativeJacobi + image.ZipAR"
    assert two["settings"] == {"image.SpeculativeJacobi": EXACT.settings(), "image.ZipAR": LOSSY.settings()}


# The table


def line(**changes):
    """The last cells but one of a made-up row, and the notes beside the table."""
    made = {**row(entry()), "label": "x", **changes}
    found = Comparison({"header": {"no_simple": ""}, "rows": [made]}, [], TRIAL.metrics[:1])
    return found.table()[1][0], found.notes()


@pytest.mark.parametrize(
    ("changes", "word"),
    (
        ({"equal": True, "same_distribution": True}, "equal"),
        ({"equal": False, "same_distribution": True}, "same distribution"),
        ({"equal": False, "same_distribution": False}, "differs"),
        ({"kind": "plain"}, ""),
    ),
)
def test_the_word_for_an_output(changes, word):
    assert line(**changes)[0][-2] == word


@pytest.mark.parametrize(
    ("speedup", "low", "high", "more", "told"),
    (
        (0.8, 0.7, 0.9, {}, "x is slower than the plain run"),
        (0.9, 0.7, 1.2, {}, "x is slower than the plain run, though not in every round"),
        (1.5, 0.9, 2.0, {}, "x is faster than the plain run, though not in every round"),
        (1.5, 1.0, 2.0, {}, None),
        (0.8, 0.7, 0.9, {"kind": "simple"}, None),
        (0.99, 0.9, 1.1, {"idle": "why"}, None),
        (0.8, 0.7, 0.9, {"idle": "why"}, "x is slower than the plain run"),
    ),
)
def test_what_is_said_of_the_pace(speedup, low, high, more, told):
    _, notes = line(speedup=speedup, speedup_range=[low, high], **more)
    assert [note for note in notes if " is " in note] == ([told] if told else [])


@pytest.mark.parametrize(
    ("changes", "cell"),
    (
        ({"peak_extra_bytes": 3 * 2**19}, "1.5 MiB"),
        ({"peak_extra_bytes": 2**19}, "512 KiB"),
        ({"peak_extra_bytes": 2**19, "peak_bytes": 2**30}, "1024.0 MiB in all"),
        ({"kind": "simple", "peak_extra_bytes": 2**20}, ""),
        ({"kind": "plain", "peak_bytes": 2**20}, "1.0 MiB in all"),
    ),
)
def test_memory_is_that_of_the_method_or_the_peak_of_all(changes, cell):
    assert line(**changes)[0][-1] == cell


def test_warnings_are_said_with_the_name_and_not_twice():
    _, notes = line(idle="why", warnings=["why", "more"])
    assert notes == ["x did nothing: why", "x: more"]


# The header


def outcome(seeds=(0,), **changes):
    made = [entry([True] * len(seeds), kind="plain"), entry([True] * len(seeds))]
    told = Trial()
    vars(told).update({"about": "", "inputs": {"prompt": "p" * 200}, "show": lambda output: output, **changes})
    return Comparison.of(told, made, list(seeds), "none was asked for")


def test_the_header_says_what_was_called_with_which_seeds():
    header = outcome(seeds=(0, 1)).result["header"]
    assert header["target"] == "object" and header["model"] == "m" and header["seeds"] == [0, 1]
    assert header["call"] == {"prompt": "p" * 160 + "... (200 characters)"}
    assert header["no_simple"] == "none was asked for" and not {"about", "seedless"} & set(header)
    assert {row["model"] for row in outcome().rows} == {"m"}


def test_a_comparison_of_a_prompt_of_several_lines_is_read_again(tmp_path):
    found = outcome(inputs={"prompt": "a fox\n\tin \x1b[1msnow\u2028", "questions": ["what?\n", "where?"]})
    found.save(tmp_path / "x.json")
    call = results.load(tmp_path / "x.json")["header"]["call"]
    assert call == {"prompt": "a fox in [1msnow", "questions": ["what?", "where?"]}


def test_the_name_of_a_model_is_its_own_where_a_trial_has_none():
    for name, expected in (("hub/model", "hub/model"), ("/folder/of/model", "model"), ("", "SimpleNamespace")):
        found = outcome(model="", target=SimpleNamespace(name_or_path=name))
        assert found.result["header"]["model"] == expected == found.rows[1]["model"]


def test_equal_outputs_of_all_seeds_are_explained_where_there_are_several():
    several = outcome(seeds=(0, 1), seedless="it draws nothing", about="plain is greedy")
    assert (
        several.notes()[0] == "plain is greedy" and several.notes()[-1] == "all seeds gave one output: it draws nothing"
    )
    assert not any("all seeds" in note for note in outcome(seedless="it draws nothing").notes())


def test_a_metric_that_nobody_could_measure_has_no_column():
    found = outcome()
    assert [metric.key for metric in found.metrics] == ["far"] and "x" not in found.table()[0]


def test_a_page_says_how_many_runs_and_seeds_there_were():
    def show(output):
        return Shown(texts=[f"picture {output}"])

    one, two = (page(outcome(seeds=seeds, show=show)) for seeds in ((0,), (0, 1)))
    assert "One run of each, too few to trust, seed 0, warm-up" in one and "seed 0; far 0.000" in one
    assert "Medians of 2 runs in turns (lowest to highest), seeds 0, 1, warm-up" in two
    assert "the worst of 2 seeds: " in two and "<b>far</b>: the distance." in two


# Turns


@pytest.mark.parametrize(("values", "middle"), (([3, 1], 2.0), ([1, 9, 2], 2.0), ([4, 1, 3, 2], 2.5), ([7], 7.0)))
def test_a_median_of_an_even_count_lies_between_the_middle_two(values, middle):
    assert results.median(values) == middle


def test_runs_take_turns_in_an_order_that_turns():
    order = []

    class Noted(Workload):
        def run(self, target, seed, fewer=None):
            order.append((seed, target))
            return f"{target}{seed}"

        def judge(self, plain, other):
            return {"made": other}

    def named(name):
        return Entry(name, PLAIN if name == "b" else "method", setup=lambda _: nullcontext(name))

    entries = [named(name) for name in "abc"]
    Runner(Noted(), entries, range(4)).run(warm_up=False)
    assert order == [(number, name) for number, names in enumerate(("abc", "bca", "cab", "abc")) for name in names]
    found = {entry.label: [entry.metrics[number]["made"] for number in range(4)] for entry in entries}
    assert found == {name: [f"{name}{number}" for number in range(4)] for name in "abc"}


@pytest.mark.parametrize("told", (True, False))
def test_a_plan_is_exact_as_far_as_the_reports_of_its_runs_say_so(told):
    made = Entry("x", "method", planned(EXACT), samples=[sample(seed=0), sample(seed=1)])
    made.samples[1].report["exact"] = told
    assert made.exact is told
