"""Comparisons: who runs in which order, what is said of each, and the files."""

import html
import importlib
import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import sampled_models
import torch
from PIL import Image

import mmaccel
from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.cli import main as cli
from mmaccel.comparison import page as comparison_page
from mmaccel.comparison import results, trial
from mmaccel.comparison.comparison import Comparison, Pair, describe
from mmaccel.comparison.difference import difference, worst_frame, worst_row, worst_texts
from mmaccel.comparison.ranks import Ranks
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Shown
from mmaccel.errors import (
    ActiveSessionError,
    ConflictError,
    MissingExtraError,
    SettingError,
    UnknownNameError,
    UnsupportedTargetError,
)
from mmaccel.image import SpeculativeJacobi, ZipAR
from mmaccel.image import examples as image_examples
from mmaccel.image.command import ImageCommand
from mmaccel.method import Method
from mmaccel.plan import Plan
from mmaccel.testing.contract import snapshot
from mmaccel.video import EasyCache, HeterogeneousSteps, SparseAttention
from mmaccel.video import examples as video_examples
from mmaccel.vlm import HoliTom, visual_examples
from mmaccel.vlm import examples as decoder_examples
from mmaccel.vlm.comparing import AnswerTrial, spread

HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> \"'&"
REUSING = EasyCache(threshold=1e6, warmup=2)


class Words:
    """A processor that says every token as a hostile word."""

    def batch_decode(self, tokens, skip_special_tokens):
        return [" ".join(f"<b>{token}</b>" for token in row) for row in tokens.tolist()]


@pytest.fixture
def janus():
    return image_examples.janus()


@pytest.fixture
def wan():
    pipe, arguments = video_examples.wan_pipeline()
    return pipe, {name: value for name, value in arguments().items() if name != "latents"}


def rows(comparison):
    return {row["label"]: row for row in comparison.rows}


# Images


def test_image_methods_side_by_side(janus):
    model, arguments = janus
    before, state = snapshot(model), torch.get_rng_state()
    found = mmaccel.compare(model, SpeculativeJacobi(window=8), ZipAR(window=2), seeds=(3, 5), rounds=1, **arguments())
    assert torch.equal(torch.get_rng_state(), state) and snapshot(model).keys() == before.keys()
    plain, exact, lossy = found.rows
    assert [row["label"] for row in found.rows] == [
        "plain",
        "image.SpeculativeJacobi(window=8)",
        "image.ZipAR(window=2)",
    ]
    for row in found.rows:
        assert set(results.COLUMNS) <= set(row) and row["seeds"] == [3, 5] and len(row["samples"]) == 2
        assert row["baseline_seconds"] == plain["wall_seconds"] and row["modality"] == "image"
    assert (
        plain["equal"]
        and plain["speedup"] == 1
        and exact["exact"]
        and exact["same_distribution"]
        and not lossy["exact"]
    )
    assert exact["work_ratio"] < 1 and lossy["work_ratio"] < 1 and exact["peak_extra_bytes"] > 0
    assert lossy["quality_worst"] == max(found["surprise"] for found in lossy["metrics_by_seed"].values())
    assert "same distribution" in str(
        found
    ) and "no simple alternative: every token of a picture has to be drawn" in str(found)


def test_an_accelerated_target_is_refused_before_anything_runs(janus):
    model, arguments = janus
    calls = []
    with mmaccel.accelerate(model, ZipAR(window=2)):
        hook = model.model.language_model.register_forward_pre_hook(lambda *_: calls.append(None))
        with pytest.raises(ActiveSessionError, match="already accelerated"):
            mmaccel.compare(model, SpeculativeJacobi(window=4), **arguments())
        hook.remove()
    assert not calls


def test_numbers_of_numpy_are_numbers(janus):
    model, arguments = janus
    found = mmaccel.compare(model, ZipAR(window=2), seeds=np.arange(2), rounds=1, **arguments())
    assert [row["seeds"] for row in json.loads(json.dumps(found.rows))] == [[0, 1], [0, 1]]


def test_the_ratios_are_those_of_a_round(janus):
    model, arguments = janus
    found = mmaccel.compare(model, ZipAR(window=2), **arguments())
    plain, fast = found.rows
    pairs = list(zip(plain["samples"], fast["samples"], strict=True))
    assert [two["ratio"] for _, two in pairs] == [one["seconds"] / two["seconds"] for one, two in pairs]
    assert fast["speedup"] == results.median(two["ratio"] for _, two in pairs) and len(pairs) == 3
    assert fast["speedup_range"] == [min(t["ratio"] for _, t in pairs), max(t["ratio"] for _, t in pairs)]


def test_neutral_settings_are_called_out(janus):
    model, arguments = janus
    found = mmaccel.compare(model, ZipAR(window=4), **arguments())
    row = found.rows[1]
    assert row["equal"] and "plain decoding" in row["idle"]
    assert "image.ZipAR() did nothing: these settings are plain decoding" in str(found)


def test_greedy_pictures_of_an_exact_method_are_equal(janus):
    model, arguments = janus
    call = {**arguments(), "do_sample": False}
    found = mmaccel.compare(model, SpeculativeJacobi(window=8), seeds=(0, 1), rounds=1, **call)
    row = found.rows[1]
    assert row["equal"] and not row["same_distribution"] and row["metrics"]["same"] == 1 and not row["idle"]
    assert "all seeds gave one output" in str(found)


def test_a_call_that_writes_no_picture(janus):
    model, arguments = janus
    call = {name: value for name, value in arguments().items() if name != "generation_mode"}
    with pytest.raises(UnsupportedTargetError, match="generation_mode='image'"):
        mmaccel.compare(model, ZipAR(window=2), **call)


def test_a_family_whose_surprise_is_not_told():
    model, arguments = image_examples.emu3()
    found = mmaccel.compare(model, SpeculativeJacobi(window=8), rounds=1, **{**arguments(), "do_sample": False})
    assert found.rows[1]["quality"] == 1 and found.rows[1]["equal"]


# Diffusion


class Passes:
    """A clock that counts the passes through a pipeline's last block."""

    def __init__(self, pipe):
        self.count = 0
        pipe.transformer.blocks[-1].register_forward_pre_hook(self)

    def __call__(self, *_):
        self.count += 1

    def perf_counter(self):
        return self.count


def test_fewer_steps_run_beside_a_method(wan, monkeypatch):
    pipe, call = wan
    monkeypatch.setattr(trial.Workload, "timer", staticmethod(Passes(pipe).perf_counter))
    before = snapshot(pipe)
    found = mmaccel.compare(pipe, REUSING, EasyCache(threshold=0.0), seeds=(1, 2), rounds=2, **call)
    assert snapshot(pipe).keys() == before.keys()
    table = rows(found)
    reusing, neutral = table[str(REUSING)], table["video.EasyCache(threshold=0.0)"]
    assert table["plain"]["wall_seconds"] == neutral["wall_seconds"] == 2 * video_examples.STEPS
    simple = [row for row in found.rows if row["kind"] == "simple"]
    assert len(simple) == 1 and simple[0]["method"] == "fewer steps"
    assert simple[0]["wall_seconds"] == reusing["wall_seconds"] == 2 * simple[0]["settings"]["steps"]
    assert simple[0]["speedup"] == reusing["speedup"] > 2 and not simple[0]["equal"]
    assert all(len(row["samples"]) == 4 and row["seeds"] == [1, 2] for row in found.rows)
    assert neutral["equal"] and neutral["quality"] == 100 and neutral["idle"]
    assert reusing["work_ratio"] < 1 and not reusing["equal"] and not reusing["idle"] and reusing["quality"] < 100
    assert [pair.label for pair in found.pairs] == [row["label"] for row in found.rows[1:]] and len(found.pairs) == 3
    worst = next(pair for pair in found.pairs if pair.label == str(REUSING))
    by_seed = {seed: figures["psnr"] for seed, figures in reusing["metrics_by_seed"].items()}
    assert by_seed[1] != by_seed[2], "the seeds must make different noise"
    assert worst.seed == reusing["worst_seed"] == min(by_seed, key=by_seed.get)
    assert worst.figures["psnr"] == reusing["quality_worst"] == min(by_seed.values())


def test_the_simple_alternative_does_what_it_says(wan):
    """Its output is that of the plain pipeline at so many steps."""
    pipe, call = wan
    trial = mmaccel.comparison.trial.trial_of(mmaccel.adapter.find_adapter(pipe), call, None)
    expected = pipe(**{**call, "num_inference_steps": 3}, generator=torch.Generator().manual_seed(7))[0]
    assert torch.equal(trial.run(pipe, 7, fewer=3), expected) and trial.count == video_examples.STEPS


def test_simple_can_be_left_out(wan):
    found = mmaccel.compare(wan[0], REUSING, simple=False, rounds=1, **wan[1])
    assert [row["kind"] for row in found.rows] == ["plain", "method"] and "it was not requested" in str(found)


def test_one_step_has_no_simple_alternative(wan):
    found = mmaccel.compare(wan[0], REUSING, rounds=1, **{**wan[1], "num_inference_steps": 1})
    assert "with one of its steps left out, nothing would be left" in str(found) and found.rows[1]["idle"]


def test_given_schedules_and_noise(wan):
    pipe, call = wan
    noise = video_examples.wan_pipeline()[1]()["latents"]
    found = mmaccel.compare(pipe, REUSING, seeds=(0, 1), rounds=1, simple=False, latents=noise, **call)
    assert "all seeds gave one output: latents= fixes the noise" in str(found)
    adapter = mmaccel.adapter.find_adapter(pipe)
    trial = mmaccel.comparison.trial.trial_of(adapter, {**call, "sigmas": [1.0, 0.5]}, None)
    assert trial.count == 0 and "sigmas=" in trial.no_simple


def test_a_transformer_without_its_pipeline():
    model, arguments = sampled_models.wan()
    with pytest.raises(UnsupportedTargetError, match="is only its transformer: accelerate\\(pipe, ...\\)"):
        mmaccel.compare(model, REUSING, **arguments())
    with pytest.raises(UnsupportedTargetError, match="compare its pipeline"):
        mmaccel.compare(model, SparseAttention(), **arguments())


def test_several_methods_as_one_entry(wan):
    pipe, call = wan
    pair = (HeterogeneousSteps(0.5),)
    found = mmaccel.compare(pipe, pair, mmaccel.plan(pipe, REUSING), rounds=1, simple=False, **call)
    assert [row["method"] for row in found.rows] == ["plain", "video.HeterogeneousSteps", "video.EasyCache"]
    found = mmaccel.compare(pipe, preset="balanced", rounds=1, simple=False, **call)
    assert found.rows[1]["method"] == "video.HeterogeneousSteps"


# Answers


def test_fewer_frames_run_beside_a_method():
    model, arguments = visual_examples.onevision()
    call = arguments(batch=2, frames=8)
    trial = mmaccel.comparison.trial.trial_of(mmaccel.adapter.find_adapter(model), call, None)
    assert isinstance(trial, AnswerTrial) and trial.count == 8
    expected = model.generate(**arguments(batch=2, frames=8))[:, call["input_ids"].shape[1] :]
    assert torch.equal(trial.run(model, 0), expected)
    few = trial.run(model, 0, fewer=3)
    hand = dict(call, pixel_values_videos=call["pixel_values_videos"][:, [0, 4, 7]])
    assert spread(8, 3).tolist() == [0, 4, 7]
    stay = torch.ones_like(call["input_ids"], dtype=torch.bool)
    first = int((call["input_ids"][0] == visual_examples.VIDEO).nonzero()[0])
    for frame in (1, 2, 3, 5, 6):
        stay[:, first + 16 * frame : first + 16 * (frame + 1)] = False
    hand |= {name: call[name][stay].view(2, -1) for name in ("input_ids", "attention_mask")}
    assert torch.equal(few, model.generate(**hand)[:, hand["input_ids"].shape[1] :])


def test_answers_and_their_differences(tmp_path):
    model, arguments = visual_examples.onevision()
    methods = (HoliTom(keep=0.25), HoliTom(keep=1.0))
    found = mmaccel.compare(model, *methods, rounds=1, simple=False, processor=Words(), **arguments(batch=2))
    lossy, neutral = found.rows[1:]
    assert neutral["equal"] and neutral["quality"] == 1 and neutral["idle"]
    assert "did nothing: this budget is plain attention" in str(found)
    assert 0 <= lossy["quality"] <= 1 and lossy["metrics"]["like"] >= 0
    found.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert "&lt;b&gt;" in page and not re.search(r"<b>\d", page)


def test_frames_and_questions_go_together():
    model, _ = visual_examples.onevision()
    with pytest.raises(SettingError, match="frames=, questions= and processor="):
        mmaccel.compare(model, HoliTom(), frames=[1, 2], questions="what moves?")
    for frames, questions in (([], "what moves?"), ([1, 2], [])):
        with pytest.raises(SettingError, match="give at least one of each"):
            mmaccel.compare(model, HoliTom(), frames=frames, questions=questions, processor=Words())
    for file in ("clip.mp4", Path("clip.mp4")):
        with pytest.raises(SettingError, match="frames='clip.mp4' is a file: give vlm.read_video"):
            mmaccel.compare(model, HoliTom(), frames=file, questions="what moves?", processor=Words())


def test_a_family_whose_frames_are_no_axis_says_so():
    model, arguments = visual_examples.internvl()
    found = mmaccel.compare(model, HoliTom(keep=0.5), rounds=1, **arguments())
    assert "no simple alternative: this call shows no video of several frames" in str(found)


# Broken and unwilling methods


def test_a_broken_promise_is_told(wan, register):
    @register("video")
    @dataclass(frozen=True)
    class Wrong(Method):
        """Says that it is exact."""

        paper = "Nobody, 2026"
        lossless = True

        def attach(self, session, stack: ExitStack) -> None:
            handle = session.target.transformer.register_forward_hook(lambda m, a, out: (out[0] * 1.01,))
            stack.callback(handle.remove)

    found = mmaccel.compare(wan[0], Wrong(), simple=False, rounds=1, **wan[1])
    row = found.rows[1]
    assert row["exact"] and not row["equal"] and not row["idle"]
    assert "claims to be exact, but gave another output" in str(found)


@pytest.mark.parametrize(
    ("dtype", "told"),
    (
        (torch.float32, "it claims to be exact, but gave another output\n"),
        (torch.bfloat16, "it claims to be exact, but gave another output: in bfloat16 that can be rounding"),
    ),
    ids=str,
)
def test_a_broken_promise_in_half_precision_may_be_rounding(register, dtype, told):
    @register("vlm")
    @dataclass(frozen=True)
    class Other(Method):
        """Says that it is exact."""

        paper = "Nobody, 2026"
        lossless = True

        def attach(self, session, stack: ExitStack) -> None:
            handle = session.target.lm_head.register_forward_hook(lambda module, given, logits: -logits)
            stack.callback(handle.remove)

    model, arguments = decoder_examples.llama()
    found = mmaccel.compare(model.to(dtype), Other(), simple=False, rounds=1, **arguments())
    assert not found.rows[1]["equal"] and told in f"{found}\n"


@pytest.mark.parametrize(
    ("methods", "more", "error", "hint"),
    (
        ((REUSING,), {"seeds": ()}, SettingError, r"seeds is empty.*range\(4\)"),
        ((REUSING,), {"seeds": 4}, SettingError, r"seeds=4.*range\(4\)"),
        ((REUSING,), {"seeds": (1, 1)}, SettingError, "different"),
        ((REUSING,), {"seeds": (0.5,)}, SettingError, "integers"),
        ((REUSING,), {"rounds": 0}, SettingError, "rounds=0"),
        ((REUSING,), {"generator": torch.Generator()}, SettingError, "leave out generator"),
        ((REUSING, REUSING), {}, ConflictError, "twice"),
        ((), {}, ConflictError, "nothing to do"),
        ((ZipAR(),), {}, UnsupportedTargetError, "video"),
        (((REUSING, REUSING),), {}, ConflictError, "cannot be combined"),
        (([REUSING, REUSING],), {}, ConflictError, "cannot be combined"),
        ((), {"preset": "balancd"}, UnknownNameError, "balanced"),
        ((EasyCache,), {}, TypeError, r"write EasyCache\(\)"),
    ),
)
def test_bad_requests_before_anything_runs(wan, methods, more, error, hint):
    pipe, call = wan
    passes = Passes(pipe)
    with pytest.raises(error, match=hint):
        mmaccel.compare(pipe, *methods, **{**call, **more})
    assert passes.count == 0


# Files


class Tags(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def picture(value, size=(16, 12)):
    return Image.new("RGB", size, (value, 100, 100))


def made_of(rows_of, pairs, metrics=()):
    """A comparison with other pairs."""
    return Comparison(rows_of.result, pairs, metrics or rows_of.metrics)


def test_a_page_escapes_and_asks_nobody(wan, tmp_path):
    pipe, call = wan
    found = mmaccel.compare(pipe, REUSING, rounds=1, simple=False, **call)
    found.result["header"]["call"]["prompt"] = HOSTILE
    label, sides = found.rows[1]["label"], ([picture(10)], [picture(30)])
    texts = Pair(label, 0, Shown(texts=[HOSTILE, "same"]), Shown(texts=["other " + HOSTILE, "same"]), {})
    clip = Pair(label, 0, Shown([[picture(i) for i in range(4)]]), Shown([[picture(9 * i) for i in range(4)]]), {})
    for pair in (texts, clip, Pair(label, 0, Shown([sides[0]]), Shown([sides[1]]), {"psnr": 30.0})):
        made_of(found, [pair]).save(tmp_path / "x.html")
        page = (tmp_path / "x.html").read_text()
        tags = Tags(page).found
        assert sum(tag == "script" for tag, _ in tags) == 1 and "alert(1)</script>" not in page
        assert html.escape("<script>alert(1)") in page
        sources = [value for _, at in tags for name, value in at.items() if name in ("src", "href")]
        assert all(value.startswith("data:") for value in sources) and "http://" not in page and "https://" not in page
        assert not [at for _, at in tags if any(name.startswith("on") for name in at)]
    assert sum(tag == "img" for tag, _ in tags) == 3


def test_clips_have_one_button(wan, tmp_path):
    pytest.importorskip("av")
    found = mmaccel.compare(wan[0], REUSING, rounds=1, simple=False, **wan[1])
    clip = Pair(
        found.rows[1]["label"], 0, Shown([[picture(i) for i in range(4)]]), Shown([[picture(90)] * 4]), {"psnr": 1.0}
    )
    made_of(found, [clip]).save(tmp_path / "x.html")
    tags = [tag for tag, _ in Tags((tmp_path / "x.html").read_text()).found]
    assert tags.count("video") == 3 and tags.count("button") == 1
    made_of(found, [clip]).save(tmp_path / "x.png")
    assert Image.open(tmp_path / "x.png").height > 256


def test_files_of_a_comparison(janus, tmp_path):
    model, arguments = janus
    found = mmaccel.compare(model, ZipAR(window=2), rounds=1, **arguments(batch=2))
    for name in ("x.json", "x.png", "x.HTML"):
        found.save(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.HTML", "x.json", "x.png"]
    data = json.loads((tmp_path / "x.json").read_text())
    assert set(data) == {"header", "rows"} and {"versions", "machine", "threads", "date"} <= set(data["header"])
    assert data["rows"][1]["method"] == "image.ZipAR" and data["rows"][1]["settings"]["window"] == 2
    assert "ZipAR" in pages.table(data)
    assert Image.open(tmp_path / "x.png").width > 2 * 256
    assert "data:image/png;base64" in (tmp_path / "x.HTML").read_text()


def test_unknown_endings_and_places(janus, tmp_path):
    model, arguments = janus
    found = mmaccel.compare(model, ZipAR(window=2), rounds=1, **arguments())
    with pytest.raises(SettingError, match="x.gif.*'?.html, .png, .json"):
        found.save(tmp_path / "x.gif")
    with pytest.raises(OSError, match="no folder"):
        found.save(tmp_path / "no" / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_long_and_large_arguments_are_told_in_short():
    assert describe("a" * 100_000) == "a" * 160 + "... (100000 characters)"
    assert describe(torch.zeros(2, 3)) == "Tensor [2, 3]" and describe(None) is None
    assert describe([torch.zeros(1)] * 9) == "9 x Tensor [1]" and describe(["a", 2]) == ["a", 2]
    assert describe(object()) == "object" and describe([]) == []


def test_where_pictures_differ():
    assert difference(picture(20), picture(30)).getpixel((3, 3)) == (40, 0, 0)
    assert difference(picture(0), picture(255)).getpixel((0, 0)) == (255, 0, 0)
    one, other = [picture(0)] * 3, [picture(0), picture(9), picture(3)]
    assert worst_frame(one, other) == 1
    assert worst_row(Shown([one, one]), Shown([one, other])) == 1


def test_texts_that_differ_most_come_first():
    plain = Shown(texts=["a b c d", "x", "e f", "x"], names=["one", "two", "three", "four"])
    other = Shown(texts=["a b c y", "x", "g h", "x"])
    assert [name for name, *_ in worst_texts(plain, other)] == ["three", "one", "two", "four"]
    answers = comparison_page._answers(Pair("method", 0, plain, other, {}))
    places = [answers.index(text) for text in ("three", "one", "<details>", "2 of 4 are the same", "two")]
    assert places == sorted(places) and answers.count("<ins>") == 2
    assert worst_texts(Shown(texts=["a"], names=["one", "too many"]), Shown(texts=["b"])) == [("", "a", "b")]


def test_only_so_many_answers_are_shown():
    for count, left in ((20, False), (23, True)):
        plain, other = (Shown(texts=[f"{word} {i}" for i in range(count)]) for word in ("a", "b"))
        answers = comparison_page._answers(Pair("method", 0, plain, other, {}))
        assert answers.count("<ins>") == 20 and ("and 3 more" in answers) == left == ("more</p>" in answers)


def test_of_several_pictures_the_one_that_differs_most_is_shown():
    plain, other = Shown([[picture(10)], [picture(10)]]), Shown([[picture(10)], [picture(90)]])
    text = comparison_page._pictures(Pair("method", 0, plain, other, {}))
    assert "plain, row 2 of 2, which differs most" in text and "<button" not in text
    assert len(set(re.findall(r'src="([^"]+)"', text))) == 3, "plain, the other, and where they differ"


@pytest.mark.parametrize("installed", (True, False))
def test_clips_keep_their_rate_and_need_no_library(monkeypatch, installed):
    saved = []

    def save(clip, path, rate):
        saved.append((path.suffix, rate))
        if path.suffix == ".mp4" and not installed:
            raise MissingExtraError("no PyAV")
        path.write_bytes(b"a clip")

    monkeypatch.setattr("mmaccel.files.clips.save", save)
    sides = (Shown([[picture(value)] * 2], rate=24) for value in (10, 90))
    text = comparison_page._pictures(Pair("method", 0, *sides, {}))
    assert saved == ([(".mp4", 24)] if installed else [(".mp4", 24), (".webp", 24)]) * 3
    assert ("<button" in text) == installed and text.count("video/mp4" if installed else "image/webp") == 3


@pytest.mark.parametrize(
    ("seeds", "rounds", "runs"), (((7,), None, 3), (range(2), None, 2), (range(3), None, 1), (range(4), 2, 2))
)
def test_every_entry_runs_three_times_unless_told_otherwise(monkeypatch, seeds, rounds, runs):
    module = importlib.import_module("mmaccel.comparison.compare")
    monkeypatch.setattr(module, "find_adapter", lambda target, kind: f"{kind} adapter of {target}")
    monkeypatch.setattr(module, "plan", lambda target, *chosen, preset=None: Plan(chosen or (ZipAR(),), "janus"))
    for name in ("trial_of", "measured"):
        monkeypatch.setattr(module, name, lambda *given: given)
    more = {"seeds": iter(seeds), "rounds": rounds, "simple": False, "processor": "a processor", "prompt": "x"}
    trial, entries, *others = module.compare("a model", ZipAR(window=2), preset="fast", **more)
    assert others == [list(seeds), runs, False, Ranks()] and trial == (
        "image adapter of a model",
        {"prompt": "x"},
        "a processor",
        frozenset(),
    )
    assert [entry.label for entry in entries] == ["plain", "image.ZipAR(window=2)", "image.ZipAR()"]


# Whole


def test_a_zoo_model(monkeypatch):
    monkeypatch.setattr(Runner, "warm_up", lambda *_: None)
    model, processor = zoo.load("tiny-janus")
    inputs = processor(text=["red heart"], generation_mode="image", return_tensors="pt", return_token_type_ids=False)
    found = mmaccel.compare(model, ZipAR(window=4), rounds=1, **inputs, generation_mode="image", do_sample=True)
    row = found.rows[1]
    assert row["model"] == "tiny-janus" and row["work_ratio"] < 0.5 and row["quality"] > 0
    shown = found.pairs[0]
    assert shown.other.clips[0][0].size == shown.plain.clips[0][0].size and shown.seed == 0
    assert str(zoo.path("tiny-janus").parent) not in json.dumps(found.to_dict())


@pytest.mark.parametrize(
    ("words", "hint"),
    (
        (["image", "pizza", "-o", "{}/x.gif"], ".html"),
        (["image", "pizza", "-o", "{}/no/x.html"], "no folder"),
        (["image", "pizza", "-o", "{}/x.html", "--seeds", "0"], "--seeds 0"),
        (["image", "", "-o", "{}/x.html"], "empty"),
        (["video", " ", "-o", "{}/x.html"], "empty"),
        (["video", "rocket", "-o", "{}/x.html", "--steps", "0"], "at least 1"),
        (["vlm", "{}/none.mp4", "what?", "-o", "{}/x.html"], "none.mp4"),
    ),
)
def test_bad_words_are_one_line_and_leave_nothing(tmp_path, capsys, words, hint):
    code = cli.main(["compare", *(word.format(tmp_path) for word in words)])
    out = capsys.readouterr()
    assert code == 2 and hint in out.err and len(out.err.strip().splitlines()) == 1, out.err
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_writes_what_compare_finds(tmp_path, capsys, monkeypatch, janus):
    model, arguments = janus
    monkeypatch.setattr(ImageCommand, "prepare", lambda *_: (model, arguments()))
    words = ["image", "pizza", "--method", "ZipAR:window=2", "--method", "SpeculativeJacobi:window=8", "--seeds", "1"]
    code = cli.main(["compare", *words, "--rounds", "1", "-o", str(tmp_path / "x.json")])
    out = capsys.readouterr().out
    assert code == 0 and "image.ZipAR(window=2)" in out and "wrote" in out
    assert len(json.loads((tmp_path / "x.json").read_text())["rows"]) == 3
