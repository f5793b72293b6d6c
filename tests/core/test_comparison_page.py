"""What a page, a picture and a table show of rows that are made up."""

import base64
import html
import importlib
import io
import math
import re
from types import SimpleNamespace

import pytest
from PIL import Image

from mmaccel.comparison import page, picture, trial
from mmaccel.comparison.comparison import Comparison, Pair
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.ranks import Ranks
from mmaccel.comparison.trial import BaseTrial, Metric, Shown, Workload
from mmaccel.errors import SettingError
from mmaccel.image import ZipAR
from mmaccel.report import Report

compare = importlib.import_module("mmaccel.comparison.compare")
NEAR = Metric("near", "near dB", "how near it is", ".1f")
FAR = Metric("far", "far", "how far it is", ".2f", higher_is_better=False)
HEADER = {
    "model": "a<b",
    "target": "Model",
    "call": {"prompt": "p&q", "size": 3},
    "seeds": [0],
    "no_simple": "",
    "versions": {"torch": "2"},
    "machine": {"system": "Linux", "processor": "CPU", "cores": "2", "accelerator": "none"},
    "threads": 2,
    "date": "2026-11-22",
}


def row(label="x", kind="method", speedup=2.0, low=1.5, high=2.5, **more):
    found = {
        "label": label,
        "kind": kind,
        "method": label,
        "speedup": speedup,
        "speedup_range": [low, high],
        "wall_seconds": 1.0,
        "wall_range": [0.5, 2.0],
        "quality": 30.0,
        "quality_worst": 20.0,
        "metrics": {"near": 30.0, "far": 0.25},
        "visual_share": None,
        "equal": False,
        "same_distribution": False,
        "peak_bytes": None,
        "peak_extra_bytes": 0,
        "idle": None,
        "warnings": [],
        "samples": [{}, {}],
    }
    return {**found, **more}


def made(*rows, pairs=(), metrics=(NEAR, FAR), **header):
    plain = row("plain", PLAIN, 1.0, 1.0, 1.0)
    return Comparison({"header": {**HEADER, **header}, "rows": [plain, *rows]}, list(pairs), metrics)


def test_a_table_has_a_cell_for_each_figure():
    headings, (plain, other) = made(row()).table()
    assert headings == ["", "seconds", "speed-up", "near dB", "worst", "far", "output", "extra memory"]
    assert plain == ["plain", "1 (0.5 to 2)", "", "", "", "0.25", "", ""], "far is no distance to the plain output"
    assert other == ["x", "1 (0.5 to 2)", "2.00x (1.50 to 2.50)", "30.0", "20.0", "0.25", "differs", "0 KiB"]
    headings, (plain, other) = made(row(visual_share=0.255, quality=None)).table()
    assert headings[3] == "visual tokens" and plain[3] == "" and other[3:5] == ["25.5%", ""]
    assert "visual tokens" not in made(row(kind="simple", visual_share=0.5)).table()[0], "no method leaves any out"


def test_colours_say_what_every_round_says():
    rows = [
        row("fast"),
        row("mixed", low=0.9),
        row("slow", speedup=0.5, low=0.4, high=0.9),
        row("idle", idle="why", high=1.0, low=0.9),
    ]
    found = page._table(made(*rows))
    classes = re.findall(r'<td class="(\w*)" data-name="speed-up">', found)
    assert classes == ["", "faster", "", "slower", ""]
    assert found.count('<tr class="plain">') == 1 and found.count('<tr class="method idle">') == 1
    assert found.count('<tr class="method">') == 3


def test_a_page_tells_the_call_the_alternative_and_the_machine():
    text = page.page(made(row(), row("fewer steps", "simple"), seeds=[4, 5], no_simple="nobody asked"))
    assert "<h1>a&lt;b: what each" in text and "<title>a&lt;b compared" in text
    assert f"Model, prompt={html.escape(chr(34) + 'p&q' + chr(34))}, size=3</p>" in text
    assert "<b>fewer steps</b>: what anyone can do" in text and "Medians of 2 runs in turns" in text
    assert "seeds 4, 5, warm-up" in text and "<li>no simple alternative: nobody asked</li>" in text
    assert "<b>near dB</b>: how near it is. <b>far</b>: how far it is." in text
    assert "<li>torch 2</li><li>Linux, CPU, 2 threads of 2 cores, no accelerator</li><li>2026-11-22</li>" in text
    assert "what anyone can do" not in page.page(made(row())) and '<ul class="notes">' not in page.page(made(row()))


def test_a_pair_is_told_with_its_own_figures():
    pair = Pair("y", 4, Shown(), Shown(), {"near": 12.34})
    rows = [row("x"), row("y", same_distribution=True)]
    alone = page._pair(made(*rows), pair)
    assert "seed 4; near dB 12.3; two samples of one distribution" in alone and "latents or tokens" in alone
    several = page._pair(made(row("x", same_distribution=True), row("y"), seeds=[3, 4]), pair)
    assert "the worst of 2 seeds: 4; near dB 12.3</p>" in several
    assert "two samples" not in page._pair(made(row("y", same_distribution=True, equal=True)), pair)


def test_answers_are_marked_and_empty_ones_are_said():
    assert page._answer("m", "<n>", "a b", "a c") == (
        "<div><h3>&lt;n&gt;</h3><p><b>plain</b></p><p>a <del>b</del></p><p><b>m</b></p><p>a <ins>c</ins></p></div>"
    )
    assert page._answer("m", "", "", "x").startswith("<div><p><b>plain</b></p><p>(nothing)</p>")
    assert page._answer("m", "", "", "") == "<div><p><b>both</b></p><p>(nothing)</p></div>"
    one = Pair("m", 0, Shown(texts=["a"]), Shown(texts=["a"]), {})
    assert "<details>" not in page._answers(one), "a lone answer is read as it is"


@pytest.mark.parametrize(("side", "kind"), ((1024, "png"), (1025, "webp")))
def test_only_large_pictures_are_written_as_webp(side, kind):
    head, _, content = page._picture(Image.new("RGBA", (1024, side))).partition(",")
    opened = Image.open(io.BytesIO(base64.b64decode(content)))
    assert head == f"data:image/{kind};base64" and opened.size == (1024, side) and opened.format == kind.upper()


def test_a_picture_has_the_worst_row_and_frame_of_each_pair(monkeypatch):
    shown = []
    monkeypatch.setattr(picture, "_text", lambda lines: shown.append(lines) or Image.new("RGB", (1, 1)))
    monkeypatch.setattr(picture, "side_by_side", lambda given, names: shown.append((given, names)) or given[0])

    def clips(*values):
        return [[Image.new("RGB", (2, 2), (value, 0, 0)) for value in clip] for clip in values]

    pair = Pair("y", 4, Shown(clips((0, 0), (10, 20))), Shown(clips((0, 0), (10, 60))), {})
    list(picture._pair(made(row("y"), seeds=[3, 4]), pair))
    title, (given, names) = shown
    assert title == ["y, worst seed 4"] and names == ("plain, frame 1", "y", "difference x 4")
    assert [each.getpixel((0, 0))[0] for each in given] == [20, 60, 160] and given[0].width == 256
    shown.clear()
    list(picture._pair(made(row("y")), Pair("y", 4, Shown(clips((10,))), Shown(clips((10,))), {})))
    assert shown[0] == ["y, seed 4"] and shown[1][1][0] == "plain"
    shown.clear()
    texts = [Shown(texts=[f"{word}{i}" for i in range(22)], names=[f"n{i}" for i in range(22)]) for word in "ab"]
    list(picture._pair(made(row("y")), Pair("y", 4, *texts, {})))
    assert shown[0][:4] == ["y, seed 4", "n0", "plain: a0", "other: b0"] and len(shown[0]) == 1 + 3 * 20
    assert list(picture._pair(made(row("y")), Pair("y", 4, Shown(), Shown(), {}))) == []


def test_all_parts_of_a_picture_have_their_place(monkeypatch):
    parts = {"table": Image.new("RGB", (30, 20), "red"), "pair": Image.new("RGB", (50, 10), "blue")}
    monkeypatch.setattr(picture, "_table", lambda comparison: parts["table"])
    monkeypatch.setattr(picture, "_pair", lambda comparison, pair: [parts["pair"]] * pair)
    drawn = picture.draw(SimpleNamespace(pairs=[1, 2]))
    assert drawn.size == (50 + 2 * 16, 2 * 16 + 20 + 3 * 10 + 4 * 8)
    blue = [y for y in range(drawn.height) if drawn.getpixel((16, y)) == (0, 0, 255)]
    assert drawn.getpixel((16, 16)) == (255, 0, 0) and len(blue) == 30 and blue[0] == 16 + 20 + 8


# The call that is repeated


class Call(BaseTrial):
    run = equal = judge = show = None


def test_a_trial_keeps_what_it_is_given_and_makes_generators_itself(monkeypatch):
    kind = type("Call", (Call,), {"__abstractmethods__": frozenset()})
    monkeypatch.setattr(trial, "get_modality", lambda name: SimpleNamespace(trial=lambda: {"toy": kind}[name]))
    adapter = SimpleNamespace(modality="toy", target="model", parts=lambda: ["model"])
    found = trial.trial_of(adapter, {"x": 1}, "processor")
    assert (found.adapter, found.target, found.inputs, found.processor) == (adapter, "model", {"x": 1}, "processor")
    assert found.visual_share(3) is None and found.remembers and found.count == 0 and found.least == 1
    with pytest.raises(SettingError, match="leave out generator="):
        trial.trial_of(adapter, {"generator": None}, None)


def test_a_report_of_a_run_is_a_copy():
    report = Report(["x"], True, warnings=["why"], forwards=1, plain_forwards=2)
    found = Workload.report(None, SimpleNamespace(report=report), None)
    report.warnings.append("later")
    assert found["warnings"] == ["why"] and found["work_ratio"] == 0.5
    assert FAR.worst({0: 1.0, 1: 3.0, 2: 2.0}) == 1 and NEAR.worst({0: 1.0, 1: 3.0}) == 0
    assert FAR.worst({0: 9.0, 1: math.nan}) == NEAR.worst({0: 0.0, 1: math.nan, 2: 5.0}) == 1
    assert not Workload.equal(None, 1, 1) and Workload.judge(None, 1, 2) == {}


def test_generators_and_the_global_state_start_from_the_same_seed():
    import torch

    state = torch.get_rng_state()
    with trial.seeded(7) as generator:
        assert generator.initial_seed() == torch.initial_seed() == 7
        assert torch.equal(torch.rand(2), torch.rand(2, generator=generator))
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="no"), trial.seeded(7):
        raise ValueError("no")
    assert torch.equal(torch.get_rng_state(), state)


def test_all_devices_in_use_get_their_random_state_back(monkeypatch):
    import torch

    fork, forked = torch.random.fork_rng, []
    cuda = {"device_count": lambda: 4, "current_device": lambda: 0, "memory_reserved": lambda device: 9 * (device == 2)}
    monkeypatch.setattr(torch.random, "fork_rng", lambda *given, **kind: forked.append((*given, kind)) or fork([]))
    for kind in ("cuda", "xpu"):
        for name, function in cuda.items():
            monkeypatch.setattr(f"torch.{kind}.{name}", function)
        for started, devices in ((False, []), (True, [0, 2])):
            monkeypatch.setattr(f"torch.{kind}.is_initialized", lambda started=started: started)
            with trial.seeded(7):
                assert forked.pop() == (devices, {"device_type": kind})
        monkeypatch.setattr("torch.xpu.is_available", lambda: True)


def test_apple_gpus_get_their_random_state_back(monkeypatch):
    import torch

    state = [torch.tensor([3])]
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.mps.get_rng_state", lambda device: state[-1])
    monkeypatch.setattr("torch.mps.set_rng_state", lambda value, device: state.append(value))
    with trial.seeded(7):
        state.append(torch.tensor([7]))
    assert state[-1].item() == 3


def test_entries_are_of_a_method_and_what_its_row_says_more(monkeypatch):
    entry = importlib.import_module("mmaccel.comparison.entry")
    monkeypatch.setattr(entry, "plan", lambda target, method: (target, method))
    found = Entry.of("model", ZipAR(window=2), table="t")
    assert found.label == "image.ZipAR(window=2)" and found.kind == "method" and found.columns == {"table": "t"}
    assert found.plan == ("model", ZipAR(window=2))
    assert Entry.of("model", ZipAR(), "mine", "rival").label == "mine" and not Entry("x", "simple").exact


def test_what_is_measured_runs_beside_the_simple_alternative(monkeypatch):
    calls = []

    class Runner:
        def __init__(self, *given, title, ranks):
            self.given, self.title, self.entries = given, title, ["plain", "added"]
            self.ranks = ranks

    monkeypatch.setattr("mmaccel.comparison.runner.Runner", Runner)
    monkeypatch.setattr("mmaccel.comparison.simple.run_beside_simple", lambda *given: calls.append(given) or "why")
    monkeypatch.setattr(compare.Comparison, "of", lambda *given: given)
    made = compare.measured("trial", ["plain"], [3], 5, False, Ranks(1, 2))
    assert made == ("trial", ["plain", "added"], [3], "why", 2)
    runner, *rest = calls[0]
    assert runner.given == ("trial", ["plain"], [3], 5) and runner.title == "compare" and rest == ["trial", False]
