"""What `mmaccel bench language` runs, and its page; the run itself needs the weights of a wheel."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmaccel.bench import index
from mmaccel.kernels.policies import COMPRESS, DECODE, PREFILL
from mmaccel.vlm import CompressKV, PrefillDrop
from mmaccel.vlm.bench import language as language_benchmark
from mmaccel.vlm.bench.language_tasks import NEW, kind_of, needle_task, text_task
from mmaccel.vlm.bench.language_texts import KINDS, text_of
from mmaccel.vlm.presets import PRESETS

COMMITTED = Path(__file__).parents[2] / "docs" / "benchmarks" / "language.json"


def test_every_policy_is_measured_at_every_budget():
    found = {(type(m).__name__, m.policy, m.budget) for m in language_benchmark.methods((0.1, 0.25))}
    for name, policies in (("SparsePrefill", PREFILL), ("SelectKV", DECODE), ("CompressKV", COMPRESS)):
        wanted = {(name, policy, budget) for policy in policies if policy != "st_lite" for budget in (0.1, 0.25)}
        assert wanted <= found
        assert any(kind == name and budget == 1 for kind, _, budget in found)
    for full in (False, True):
        short = language_benchmark.cases(full)[0][2]
        assert {m.budget for m in short if getattr(m, "head_budgets", False)} == {0.1, 0.25}
    assert all(m.always for m in language_benchmark.methods((0.1,)) if hasattr(m, "always") and m.budget < 1)


def test_both_forms_measure_what_presets_stand_on():
    for full in (False, True):
        measured = {f"{length} tokens": chosen for length, _, chosen in language_benchmark.cases(full)}
        for preset in (preset for preset in PRESETS["decoder"].values() if preset.benchmark == "language"):
            (chosen,) = (chosen for length, chosen in measured.items() if preset.columns["model"].endswith(length))
            assert [method for method in chosen if method == preset.methods[0]] == list(preset.methods)


@pytest.mark.parametrize("full", [True, False])
def test_a_stopped_run_goes_on_at_each_method_and_length(full):
    assert len(language_benchmark.parts(full)) == sum(len(chosen) for _, _, chosen in language_benchmark.cases(full))


def test_a_row_says_which_switches_are_on():
    row = {"method": "vlm.CompressKV", "settings": CompressKV(budget=0.1, head_budgets=True).settings()}
    assert language_benchmark._label(row) == "CompressKV('snap_kv', 0.1, head_budgets=True)"
    row = {"method": "vlm.PrefillDrop", "settings": PrefillDrop(keep=0.3).settings()}
    assert language_benchmark._label(row) == "PrefillDrop(0.3)"


def test_the_page_has_every_row_and_says_how_many_texts(tmp_path):
    result = json.loads(COMMITTED.read_text(encoding="utf-8"))
    language_benchmark.BENCHMARK.write_page(result, tmp_path / "language.md")
    page = (tmp_path / "language.md").read_text(encoding="utf-8")
    assert page == COMMITTED.with_suffix(".md").read_text(encoding="utf-8")
    methods = tuple(f"| {name}" for name in ("SparsePrefill", "SelectKV", "CompressKV", "PrefillDrop"))
    lines = [line for line in page.splitlines() if line.startswith(methods)]
    assert len(lines) == len(result["rows"])
    counts = {len(row["seeds"]) for row in result["rows"]}
    assert all(f"{count} text{'s' * (count > 1)} and {count} planted number" in page for count in counts)


def test_times_and_speed_ups_of_a_page_agree():
    """Rows of different hours stand in one table, whose seconds would not."""
    rows = json.loads(COMMITTED.read_text(encoding="utf-8"))["rows"]
    assert max(row["baseline_seconds"] for row in rows[-6:]) > 1.2 * min(row["baseline_seconds"] for row in rows[-6:])
    shown = "\n".join(language_benchmark.tables(rows).values())
    shown += index.page([(language_benchmark.BENCHMARK, json.loads(COMMITTED.read_text(encoding="utf-8")))])
    found = re.findall(r"\| (\d+)% \| (\d\.\d\d)x \|", shown)
    assert len(found) > len(rows)
    for share, speedup in found:
        assert float(share) / 100 * float(speedup) == pytest.approx(1, abs=0.02)


def letters(text, return_tensors=None):
    """A tokenizer whose tokens are characters."""
    ids = [ord(letter) for letter in text]
    return SimpleNamespace(input_ids=torch.tensor([ids]) if return_tensors else ids)


def test_the_full_form_reads_eight_kinds_of_text_and_asks_at_eight_depths():
    assert [(length, count) for length, count, _ in language_benchmark.cases(full=True)] == [(2048, 8), (8000, 8)]
    assert [kind_of(seed) for seed in range(8)] == list(KINDS) and len(KINDS) == 8
    needles = [needle_task(letters, 2000, seed) for seed in range(8)]
    assert len({needle.number for needle in needles}) == 8
    for seed, needle in enumerate(needles):
        text = "".join(map(chr, needle.prompt[0].tolist()))
        assert len(text) == 2000 and text.count(needle.number) == 1 and needle.depth == (seed + 0.5) / 8
        assert abs(text.index(needle.number) / 2000 - needle.depth) < 0.06 and text.endswith("is")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_long_enough_and_the_same_each_time(kind):
    text = text_of(kind, 64_000, 0)
    assert len(text) == 64_000 and text == text_of(kind, 64_000, 0)
    assert len(set(text.splitlines())) > 200, "the same over and over measures nothing"
    seed = list(KINDS).index(kind)
    prompt, following = text_task(letters, 500, seed)
    assert "".join(map(chr, [*prompt[0].tolist(), *following.tolist()])) == text_of(kind, 500 + NEW, seed)


def test_a_row_has_the_mean_and_the_text_that_loses_most():
    lost = language_benchmark.lost([2.0, 1.0, 4.0], [1.9, 0.5, 4.2])
    assert lost["quality"] == pytest.approx(7 / 3) and lost["baseline_quality"] == pytest.approx(2.2)
    assert lost["worst_text"] == "code" and lost["loss_added"]["table"] == pytest.approx(-0.2)
    recalled = language_benchmark.recalled([needle_task(letters, 999, n) for n in (0, 1)], [True, False], [True] * 2)
    assert recalled["exact_match"] == 0.5 and recalled["baseline_exact_match"] == 1
    assert recalled["needles"][1] == {"depth": 0.1875, "text": "code", "found": False, "plain": True}


def test_pages_and_index_tell_the_worst_text():
    result = json.loads(COMMITTED.read_text(encoding="utf-8"))
    result["rows"] = [{**row, **language_benchmark.lost([2.0, 1.0], [1.9, 0.5])} for row in result["rows"]]
    page = language_benchmark.BENCHMARK.page(result, "language.json", "language.png")
    assert "| +0.300 | +0.500 (code) |" in page and "texts of 2 kinds (prose, code)" in page
    assert "(worst +0.500 (code))" in index.page([(language_benchmark.BENCHMARK, result)])
