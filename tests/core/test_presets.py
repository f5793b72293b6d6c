"""What `preset=` stands for: names, promises, and the measured rows behind them."""

import dataclasses
import json
from pathlib import Path

import pytest

import mmaccel
from mmaccel import presets, vlm, zoo
from mmaccel.adapter import adapters
from mmaccel.cli import main as cli
from mmaccel.demos.pages import preset_rows
from mmaccel.errors import ConflictError, SettingError, UnsupportedTargetError
from mmaccel.modality import modalities
from mmaccel.video import examples as video_examples
from mmaccel.vlm import examples as vlm_examples

MODALITIES = [modality.name for modality in modalities()]
BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
TABLE = [
    (modality, family, name, preset)
    for modality in MODALITIES
    for family in presets.families(modality)
    for name, preset in presets.presets_of(modality, family).items()
]
FAMILIES = {"diffusion unet"} | {adapter.family for adapter in adapters()}


def test_the_packaged_rows_are_those_of_the_benchmarks():
    packaged = Path(presets.__file__).with_name(presets.FILE).read_text(encoding="utf-8")
    assert packaged == preset_rows.collect(BENCHMARKS), "run: python -m mmaccel.demos.pages.preset_rows"


def test_every_family_has_each_preset_or_a_reason():
    for modality in MODALITIES:
        for family in presets.families(modality):
            present, absent = presets.presets_of(modality, family), presets.absent_of(modality, family)
            assert not set(present) & set(absent)
            assert set(present) | set(absent) == set(presets.NAMES), family
    known = {family for modality in MODALITIES for family in presets.families(modality)}
    assert known == FAMILIES, "a family without presets, or presets of no family"


@pytest.mark.parametrize(("modality", "family", "name", "preset"), TABLE, ids=lambda value: str(value)[:30])
def test_a_preset_keeps_its_promise(modality, family, name, preset):
    assert all(method.name.split(".")[0] == modality for method in preset.methods)
    assert all(method.families is None or family in method.families for method in preset.methods)
    if name == "exact":
        assert all(method.exact for method in preset.methods)
    row = preset.row
    assert row["speedup"] > 1 and row["model"] == preset.columns["model"]
    assert row["exact"] or (row["quality"] is not None and row["quality_metric"])
    assert f"measured on {row['model']}" in str(preset) and f"{row['speedup']:.2f}x" in str(preset)


def test_fast_is_the_fastest():
    """Of those that one benchmark measured; others say on what they were."""
    for modality in MODALITIES:
        for family in presets.families(modality):
            found = presets.presets_of(modality, family)
            for benchmark in {preset.benchmark for preset in found.values()}:
                same = [found[name] for name in presets.NAMES if name in found and found[name].benchmark == benchmark]
                times = [_shown_speed(preset.row) for preset in same]
                assert times == sorted(times), f"{family}: {times}"


def _shown_speed(row):
    """Visual presets differ in what comes after the tower, which takes most of the time of a model so small."""
    return row.get("first_token_speedup") or row["speedup"]


def test_a_plan_says_the_row_and_keeps_it(tmp_path):
    made = mmaccel.plan(zoo.load("tiny-janus")[0], preset="fast")
    row = presets.presets_of("image", "janus")["fast"].row
    assert f"fast: {row['speedup']:.2f}x" in str(made) and f"measured on {row['model']}" in str(made)
    made.save(tmp_path / "plan.json")
    loaded = mmaccel.Plan.load(tmp_path / "plan.json")
    assert loaded.why == made.why and str(loaded) == str(made)
    assert mmaccel.plan(zoo.load("tiny-janus")[0], *made.methods).why == ""


def test_an_absent_preset_says_why():
    pipe, _ = video_examples.wan_pipeline()
    with pytest.raises(UnsupportedTargetError, match="no preset 'exact', since .*preset='balanced' or preset='fast'"):
        mmaccel.accelerate(pipe, preset="exact")
    unet, _ = video_examples.unet_pipeline()
    assert "HeterogeneousSteps(budget=0.25)" in str(mmaccel.plan(unet, preset="fast"))
    with pytest.raises(UnsupportedTargetError, match="no preset 'exact', since .*preset='balanced' or preset='fast'"):
        mmaccel.plan(unet, preset="exact")
    with pytest.raises(ConflictError, match=r"nothing to do: name a method, or a preset \('balanced', 'fast'\)$"):
        mmaccel.plan(unet)


def test_a_language_model_has_a_preset_too():
    model = vlm_examples.examples()[0].build()[0]
    made = mmaccel.plan(model, preset="balanced")
    assert made.family == "decoder" and "vlm.SparsePrefill" in str(made)
    with pytest.raises(UnsupportedTargetError, match=r"no preset 'fast', since vlm.PrefillDrop.*long_prompts"):
        mmaccel.plan(model, preset="fast")
    exact = mmaccel.plan(model, preset="exact")
    assert exact.exact and "vlm.FusedDraft" in str(exact) and "measured on SmolLM2" in str(exact)


def test_what_was_measured_elsewhere_to_be_faster_is_named():
    samples = json.loads((BENCHMARKS / "long" / "long_prompts.json").read_text(encoding="utf-8"))["samples"]
    fastest = min((one for one in samples if "loss" in one), key=lambda one: one["processor_seconds"])["way"]
    absent = presets.absent_of("vlm", "decoder")["fast"]
    assert " and " in fastest and all(f"vlm.{name}" in absent for name in fastest.split(" and "))


def test_readers_of_pages_have_none_since_drafts_without_a_pipeline_lose():
    rows = json.loads((BENCHMARKS / "pages.json").read_text(encoding="utf-8"))["rows"]
    assert all(row["speedup"] < 1 for row in rows if row["method"] == "vlm.FusedDraft")
    assert min(row["speedup"] for row in rows if row["method"] == "vlm.DocumentDraft") > 1
    with pytest.raises(UnsupportedTargetError, match=r"no preset 'exact', since vlm.FusedDraft.*vlm.DocumentDraft\(\)"):
        mmaccel.plan(zoo.load("tiny-reader")[0], preset="exact")


@pytest.mark.parametrize("family", ("llava_onevision", "vision_language"))
def test_visual_presets_tell_what_every_second_frame_and_another_method_do(family):
    rows = json.loads((BENCHMARKS / "vlm.json").read_text(encoding="utf-8"))["rows"]
    brief = [row for row in rows if row["table"] == "brief"]
    second = next(row for row in brief if row["settings"] == {"step": 2})
    holitom = next(
        row
        for row in brief
        if row["method"] == "vlm.HoliTom" and row["settings"] == vlm.HoliTom(keep=0.1, tau=0.9).settings()
    )
    found = presets.presets_of("vlm", family)
    balanced, fast = found["balanced"].row, found["fast"].row
    assert second["speedup"] > max(balanced["speedup"], fast["speedup"])
    assert fast["quality"] < second["quality"] < balanced["quality"] < second["quality"] + 0.01
    assert holitom["quality"] > balanced["quality"] and holitom["speedup"] == pytest.approx(
        balanced["speedup"], rel=0.03
    )
    assert "every 2nd frame alone is faster, and nearly as often right" in str(found["balanced"])
    assert "every 2nd frame alone is faster, and more often right" in str(found["fast"])
    assert str(vlm.HoliTom(keep=0.1, tau=0.9)) in str(found["balanced"])


def test_visual_presets_say_that_they_were_measured_on_clips():
    for preset in presets.presets_of("vlm", "vision_language").values():
        assert "measured on clips alone: of a single picture" in str(preset)


def test_the_command_lists_them(capsys):
    assert cli.main(["presets", "--modality", "video"]) == 0
    out = capsys.readouterr().out
    assert "video.HeterogeneousSteps" in out and "exact     none:" in out and "image." not in out
    assert cli.main(["presets", "--modality", "vidoe"]) == 2
    assert "did you mean 'video'" in capsys.readouterr().err
    assert cli.main(["plan", "--preset", "fast"]) == 0
    assert "measured on tiny-janus" in capsys.readouterr().out


def test_a_plan_without_methods_is_of_a_preset_that_the_model_has(capsys):
    """Nobody asked for the exact one, which models that are shown clips do not have."""
    assert cli.main(["plan", "--model", "tiny-onevision"]) == 0
    assert "\n    balanced: " in capsys.readouterr().out
    assert cli.main(["plan", "--model", "tiny-onevision", "--preset", "exact"]) == 2
    assert "no preset 'exact'" in capsys.readouterr().err


def test_the_list_fits_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for modality in ("image", "video", "vlm"):
        assert cli.main(["presets", "--modality", modality]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80 and out.split() == presets.listing(modality).split()


@pytest.mark.parametrize("copies", (0, 2))
def test_a_row_that_is_missing_or_doubtful_is_an_error(tmp_path, copies):
    preset = presets.presets_of("image", "janus")["fast"]
    result = json.loads((BENCHMARKS / "image.json").read_text())
    row = next(row for row in result["rows"] if preset_rows._fits(preset, row))
    others = [other for other in result["rows"] if other is not row]
    (tmp_path / "image.json").write_text(json.dumps({**result, "rows": others + [row] * copies}))
    with pytest.raises(SettingError, match=f"has {copies} rows of image"):
        preset_rows.find(preset, tmp_path)


def test_a_row_that_was_read_is_a_copy():
    preset = presets.presets_of("image", "janus")["fast"]
    speedup = preset.row["speedup"]
    preset.row["speedup"] = 0.0
    assert preset.row["speedup"] == speedup
    presets.presets_of("image", "janus").clear()
    assert presets.presets_of("image", "janus")["fast"] is preset


def test_what_is_said_of_a_row():
    row = {"model": "m", "speedup": 2.0, "machine": "CPU", "threads": 1, "date": "2026-11-22"}
    measured = "(measured on m, CPU, 1 thread, 2026-11-22)"
    judged = {"quality_metric": "right answers", "quality": 0.5, "baseline_quality": 0.75}
    assert presets.describe({**row, **judged}) == f"2.00x; right answers: 0.5 (plain 0.75) {measured}"
    assert presets.describe({**row, "exact": True}) == f"2.00x; exact {measured}"
    first = presets.describe({**row, "first_token_speedup": 3.0})
    assert first == f"2.00x to the first token; 3.00x behind the vision tower {measured}"
    preset = presets.presets_of("image", "janus")["fast"]
    assert str(dataclasses.replace(preset, note="with care")) == f"{presets.describe(preset.row)}; with care"


def test_the_listing_has_methods_figures_and_reasons_under_shared_headings(monkeypatch):
    first = presets.presets_of("image", "janus")["exact"]
    table = {"a": {"exact": first}, "b": {"exact": first}, "c": {"exact": first}}
    absent = {"a": {"fast": "too slow"}, "b": {"fast": "too slow"}, "e": {"exact": "nobody knows"}}
    found = type("", (), {"presets": lambda self: table, "absent_presets": lambda self: absent})()
    monkeypatch.setattr(presets, "get_modality", lambda name: found)
    assert presets.families("image") == ("a", "b", "c", "e")
    method, figures = " + ".join(map(str, first.methods)), str(first)
    exact = f"  exact     {method}\n            {figures}"
    assert presets.listing("image").split("\n\n") == [
        f"image: a, b\n{exact}\n  fast      none: too slow",
        f"image: c\n{exact}",
        "image: e\n  exact     none: nobody knows",
    ]
    presets.presets_of("image", "a").clear()
    assert table["a"], "what was read is a copy"
