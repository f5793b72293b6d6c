"""What `keep` leaves: the share of the tokens over layers in reports and tables, a warning where it is too little."""

import json
from pathlib import Path

import numpy as np
import pytest

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.vlm import examples, visual_examples
from mmaccel.vlm.bench import benchmark
from mmaccel.vlm.bench import page as benchmark_page
from mmaccel.vlm.pruning.compressor import Compressor

COMMITTED = Path(__file__).parents[2] / "docs" / "benchmarks" / "vlm.json"
LAYERS, FRAMES, CELLS = 6, 6, 16


@pytest.fixture(scope="module")
def onevision():
    return visual_examples.onevision()


def lengths(result):
    """Tokens in the cache of each layer."""
    return [layer.keys.shape[2] for layer in result.past_key_values.layers]


@pytest.mark.parametrize(
    "method",
    [cls(keep=0.25) for cls in mmaccel.registry.methods().values() if issubclass(cls, Compressor)],
    ids=str,
)
def test_the_report_is_a_mean_over_the_layers(onevision, method):
    """As many tokens less in each layer's cache as the report says, over all layers."""
    model, arguments = onevision
    plain = model.generate(**arguments(1), return_dict_in_generate=True)
    with mmaccel.accelerate(model, method) as fast:
        result = fast.generate(**arguments(1), return_dict_in_generate=True)
        report = fast.report
    fewer = [before - now for before, now in zip(lengths(plain), lengths(result), strict=True)]
    assert report.plain_visual_tokens == FRAMES * CELLS and len(fewer) == LAYERS
    assert report.visual_tokens == round(FRAMES * CELLS - sum(fewer) / LAYERS)
    share = report.visual_tokens / report.plain_visual_tokens
    assert f"{share:.1%}, a mean over layers" in str(report)


def test_a_comparison_has_the_share_of_every_line():
    model, processor = zoo.load("tiny-onevision")
    frames = np.random.default_rng(0).integers(0, 255, (8, 48, 48, 3), dtype=np.uint8)
    call = {"frames": list(frames), "questions": ["what moves up?"], "processor": processor, "max_new_tokens": 2}
    found = mmaccel.compare(model, vlm.FastV(keep=0.25), vlm.DyCoke(keep=0.5), rounds=1, **call)
    headings, lines = found.table()
    shares = {line[0]: line[headings.index("visual tokens")] for line in lines}
    layers = model.config.text_config.num_hidden_layers
    fast_v = (2 + 0.25 * (layers - 2)) / layers
    assert shares.pop("plain") == "" and list(shares.values())[:2] == [f"{fast_v:.1%}", "50.0%"]
    for row in found.rows:
        if row["kind"] == "simple":
            assert shares[row["label"]] == f"{row['settings']['frames'] / 8:.1%}"
    language, arguments = examples.llama()
    found = mmaccel.compare(language, vlm.SparsePrefill(**vlm.SparsePrefill.engaging), rounds=1, **arguments())
    assert "visual tokens" not in found.table()[0]


def test_a_row_of_the_benchmark_has_the_share_of_its_run():
    model, processor = zoo.load("tiny-onevision")
    (question,) = zoo.questions("tiny-onevision", 1, seed=0)
    layers = model.config.text_config.num_hidden_layers
    plain, *others = benchmark.cases(model, (0.25,))
    fewer = next(entry for entry in others if entry.fewer == 4)
    fast_v = next(entry for entry in others if entry.label == "vlm.FastV(keep=0.25)")
    benchmark.measure(model, processor, [plain, fewer, fast_v], [question])
    for entry, share in ((plain, 1.0), (fewer, 0.25), (fast_v, (2 + 0.25 * (layers - 2)) / layers)):
        row = benchmark.row(entry, plain, [True], [True])
        assert row["visual_share"] == pytest.approx(share, abs=0.001)


def test_the_page_shows_the_share():
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))["rows"]
    rows = [row for row in committed if row["share"] in (1.0, 0.25) and row["table"] == "brief"]
    page = benchmark_page._table(rows)
    assert page.splitlines()[0].split("|")[4].strip() == "tokens"
    (fast_v,) = (line for line in page.splitlines() if line.startswith("| FastV |"))
    assert fast_v.split("|")[4].strip() == "50.0%"


# DyCoke


@pytest.mark.parametrize(
    ("settings", "least"),
    (({"keep": 0.05}, "keep=0.219"), ({"keep": None, "tokens": 20}, "tokens=21"), ({"keep": 0.2}, "keep=0.219")),
)
def test_dycoke_says_where_its_first_stage_has_too_little(onevision, settings, least):
    """A frame of 16 tokens, and one of each of the other 5."""
    model, arguments = onevision
    with mmaccel.accelerate(model, vlm.DyCoke(**settings)) as fast:
        fast.generate(**arguments(1))
        (warning,) = fast.report.warnings
    assert f"give at least {least}" in warning and fast.report.visual_tokens < 21
    name, value = least.split("=")
    enough = vlm.DyCoke(**{"keep": None, name: float(value) if name == "keep" else int(value)})
    with mmaccel.accelerate(model, enough) as fast:
        fast.generate(**arguments(1))
        assert not fast.report.warnings
        (kept,) = vlm.kept(fast)
    assert (kept.sizes > 0).flatten(1).any(1).all(), "something of every frame"


def test_dycoke_says_where_its_first_frames_leave_nothing_to_others(onevision):
    """Two of six frames of 16 tokens, and one token for four others."""
    model, arguments = onevision
    found = {}
    for window in (4, 8):
        with mmaccel.accelerate(model, vlm.DyCoke(keep=None, tokens=33, window=window)) as fast:
            fast.generate(**arguments(1))
            found[window] = fast.report.warnings
    why = "33 tokens are not the first of every 4 frames and a token of each other frame: give window=8"
    assert len(found[4]) == 1 and why in found[4][0] and not found[8]


@pytest.mark.parametrize(
    ("tokens", "window", "said"),
    ((100, 4, "window=64 and at least tokens=112"), (90, 4, "window=64 and at least"), (161, 4, None)),
)
def test_dycoke_names_a_window_and_tokens_that_are_enough_together(tokens, window, said):
    """Of 64 frames of 49 tokens: with either alone it would say so again."""
    found = vlm.DyCoke(keep=None, tokens=tokens, window=window).lacks(64, 49)
    assert (found is None) if said is None else said in found
    assert vlm.DyCoke(keep=None, tokens=112, window=64).lacks(64, 49) is None


def test_a_picture_has_no_other_frame():
    assert vlm.DyCoke(keep=0.1).lacks(1, 100) is None and vlm.VidCom2(keep=0.001).lacks(9, 9) is None
