"""The figures of README.md and docs/faq.md, written from the committed rows of the benchmarks; nothing is measured::

python -m mmaccel.demos.pages.readme_figures

Each stands between two comments, which name the sentence: `<!-- figures: wan -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from mmaccel.bench.benchmark import Row
from mmaccel.bench.pages import markdown
from mmaccel.comparison import results
from mmaccel.demos.gpu.page import halved, shape
from mmaccel.demos.pages.model_table import table
from mmaccel.demos.vlm.trained_head import HALF
from mmaccel.presets import presets_of
from mmaccel.vlm.bench.text import MODES

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "faq.md")
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
WIDTH = 120  # characters of a line


def main() -> None:
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


def rewritten(text: str) -> str:
    """A text whose figures are those of the committed rows."""
    return BLOCK.sub(lambda found: f"{found[1]}{_figures()[found[2]]()}{found[3]}", text)


def _figures() -> dict[str, Callable[[], str]]:
    first = {"wan": _wan, "qwen": _qwen, "text": _text, "machine": _machine}
    return {**first, "others": _others, "models": table, "exact": _exact}


def _wan() -> str:
    ours, steps = presets_of("video", "diffusion transformer")["balanced"].row, _row("video", label="20 steps")
    assert ours["model"] == steps["model"]
    unipc = _row("long/default_sampler", kind="ours", budget=0.5, sampler="UniPC", steps=50)
    return _filled(
        f"**{ours['speedup']:.1f}x** on `tiny-wan` at 40 Euler steps, PSNR"
        f" {_psnr(_row('video', kind='ours', budget=0.5))} to the plain clip over {len(steps['seeds'])} prompts.",
        f"Simply running 20 steps takes the same time: {_psnr(steps)}.",
        f"By UniPC and 50 steps, as Wan's checkpoint has them: {_psnr(unipc)}, [with"
        " rivals](docs/benchmarks/long/default_sampler.md).",
    )


def _filled(*sentences: str) -> str:
    """Sentences as lines of a Markdown file."""
    return textwrap.fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def _psnr(row: Row) -> str:
    return f"{row['quality']:.0f} dB ({row['psnr_worst']:.0f} dB for the worst prompt)"


def _qwen() -> str:
    ours = presets_of("vlm", "vision_language")["balanced"].row
    row, plain = (
        _row("vlm", method="vlm.VidCom2", share=0.15, table="brief"),
        _row("vlm", method="plain", table="brief"),
    )
    second, seventh = (_row("vlm", table="brief", method="fewer frames", settings={"step": step}) for step in (2, 7))
    slow = _row("vlm", table="slow", method="fewer frames", settings={"step": 7})
    large = _row("long/gpu", modality="vlm", method="vlm.VidCom2")
    questions = re.search(r"\d+", row["quality_metric"])
    assert questions and ours["speedup"] == row["speedup"] and plain["quality"] == row["baseline_quality"]
    return _filled(
        f"The first token comes **{row['speedup']:.1f}x** sooner on `tiny-onevision` ({row['first_token_speedup']:.1f}x"
        f" not counting the vision tower), and {row['quality']:.0%} of {questions[0]} questions about brief events are"
        f" answered right ({row['quality_worst']:.0%} of the worst kind), {plain['quality']:.0%}"
        f" ({plain['quality_worst']:.0%}) by the plain model.",
        f"Reading every 2nd frame alone: {second['speedup']:.1f}x and {second['quality']:.0%}"
        f" ({second['quality_worst']:.0%}); every 7th {seventh['quality']:.0%}, but {slow['quality']:.0%} at"
        f" {slow['speedup']:.1f}x on slow clips: take fewer frames there, not a method.",
        f"On an H100 a LLaVA-OneVision of 7B with random weights began {large['speedup']:.2f}x sooner, and then wrote"
        f" {large['tokens_per_second']:.0f} tokens a second where the plain model writes"
        f" {large['baseline_tokens_per_second']:.0f}: the cause is mended since, and that [is not measured"
        " yet](docs/benchmarks/long/gpu.md).",
    )


def _text() -> str:
    ours = presets_of("vlm", "decoder")["exact"].row
    drafts = _row("text", method=ours["method"], mode=MODES[0].name)
    lookup, drawn = (
        _row("text", kind="rival", mode=MODES[0].name),
        _row("text", method=ours["method"], mode=MODES[1].name),
    )
    worst = drafts["worst_kind"]
    assert ours["speedup"] == drafts["speedup"]
    return _filled(
        f"**{drafts['speedup']:.1f}x** greedy on SmolLM2-135M in float32, mean of {len(drafts['by_kind'])} kinds of"
        " text, with the very tokens of the plain model ([bfloat16 parts from them](#what-exact-means-here) at"
        f" near-ties); {_kind(drafts, worst)} on {worst}, where nothing repeats.",
        f"Prompt lookup of transformers: {lookup['speedup']:.1f}x, and {_kind(lookup, worst)} there.",
        f"Without `do_sample=False` a pipeline samples: at temperature 1 ours is {drawn['speedup']:.1f}x.",
    )


def _exact() -> str:
    """How many texts were those of the plain model, in float32 and in bfloat16."""
    ours = presets_of("vlm", "decoder")["exact"].row["method"]
    full, half = (_row("long/trained_head", method=ours, mode=mode.name) for mode in (MODES[0], HALF[0]))
    texts = len(half["seeds"])
    same = round(half["quality"] * texts)
    assert full["quality"] == 1 and full["seeds"] == half["seeds"]
    return _filled(
        "In float32 the tokens are the plain model's, but where two are equally likely to seven digits. In bfloat16 a"
        " pass over several tokens rounds otherwise than a pass over one, and a text can part at a near-tie, as with"
        f" another batch size: {same} of {texts} greedy texts of SmolLM2-135M stayed the same. Which of two is better"
        " was not judged.",
    )


def _kind(row: Row, kind: str) -> str:
    return f"{row['by_kind'][kind]['speedup']:.1f}x"


def _machine() -> str:
    names = "video", "long/default_sampler", "vlm", "text", "long/trained_head"
    machines = " or ".join(sorted({_machine_of(name) for name in names}))
    return _filled(
        f"**Not measured yet: the checkpoints above**, and what a transformer's pictures lose. {_gpu()}",
        "The figures of `tiny-wan` and `tiny-onevision`, which come with mmaccel, and of SmolLM2-135M are of one thread"
        f" of an {machines}. `mmaccel.compare` measures your model on your machine.",
    )


def _machine_of(name: str) -> str:
    """The processor that a benchmark ran on, by one thread."""
    header = _result(name)["header"]
    assert header["threads"] == 1
    return processor(header)


def processor(header: dict[str, Any]) -> str:
    """Its name as people say it."""
    return str(header["machine"]["processor"]).replace("(R)", "").removesuffix(" Processor")


def _gpu() -> str:
    """Half of the steps of full-size shapes, whose weights are random."""
    found = results.load(ROOT / "docs" / "benchmarks" / "long" / "gpu.json")
    *others, last = [f"{row['speedup']:.2f}x on {shape(row)}" for row in halved(found["rows"])]
    card = found["header"]["machine"]["accelerator"].removesuffix(" 80GB HBM3")
    return (
        f"On an {card} and random weights, computing half of the steps is {', '.join(others)} and {last}"
        " ([on a GPU](docs/benchmarks/long/gpu.md))."
    )


def _others() -> str:
    """One line for each thing that the snippets do not show, and the processor that it was measured on."""
    exact, balanced = (presets_of("image", "janus")[name].row for name in ("exact", "balanced"))
    drawn = presets_of("video", "diffusion unet")["balanced"].row
    drafts = _row("speech", method="drafts in the stream")
    filled = _row("canvas", method="canvas.FactorCommit", cache=True, settings={"factor": 0.25})
    page = _row("pages", method="vlm.DocumentDraft", wrong=0.05)
    distance = f"distance to real pictures {balanced['quality']:.1f}, plain {balanced['baseline_quality']:.1f}"
    same_words = "the words of decoding anew every half second, without drafts"
    both = "`canvas.FactorCommit()` and `canvas.PrefixCache()`, called with `threshold=2`"
    lines = [
        ("`tiny-janus` draws", '`preset="exact"`', exact, "the very picture of a seed", "image"),
        ("`tiny-janus` draws", '`preset="balanced"`', balanced, distance, "image"),
        ("`tiny-unet` draws, 50 steps", '`preset="balanced"`', drawn, _unet_quality(drawn), "unet"),
        ("`tiny-reader` reads a page", "`vlm.DocumentDraft()`", page, _page_quality(), "pages"),
        ("`tiny-canvas` fills blocks", both, filled, _canvas_quality(filled), "canvas"),
        ("Moonshine tiny hears a stream", "`speech.StreamingRecognizer(...)`", drafts, same_words, "speech"),
    ]
    shown = [(what, how, f"{row['speedup']:.1f}x", quality, _machine_of(on)) for what, how, row, quality, on in lines]
    return markdown(("what", "how", "speed-up", "quality", "on one thread of"), shown)


def _canvas_quality(row: Row) -> str:
    words = _row("canvas", method="word by word, drafted")
    steps = [r for r in _result("canvas")["rows"] if r["method"] == "fewer steps" and r["quality"] == 1]
    fewer, fewer_cached = (max(r["speedup"] for r in steps if r["cache"] is cache) for cache in (False, True))
    own, own_cached = (
        _row("canvas", method="own threshold", settings={"threshold": 0.7}, cache=cache) for cache in (False, True)
    )
    assert own["quality"] == own_cached["quality"]
    return (
        f"against one token a step: {row['quality']:.0%} of its lists without a mistake. The pipeline's own threshold"
        f" of 0.7 has {own['quality']:.0%} at {own['speedup']:.1f}x, and {own_cached['speedup']:.1f}x with this cache;"
        f" fewer steps have 100% at {fewer:.1f}x and {fewer_cached:.1f}x; word by word the same weights take"
        f" {words['speedup']:.1f}x"
    )


def _unet_quality(row: Row) -> str:
    half = _row("unet", model=row["model"], method="fewer steps", settings={"steps": 25})
    rival = _row("unet", model=row["model"], method="DeepCache", settings={"interval": 2})
    return (
        f"to the plain picture {_psnr(_row('unet', model=row['model'], method=row['method']))}; 25 steps"
        f" {_psnr(half)}, DeepCache {_psnr(rival)} at {rival['speedup']:.1f}x"
    )


def _page_quality() -> str:
    fused = _row("pages", method="vlm.FusedDraft", wrong=0.05)
    return (
        "the very tokens; a light pipeline, whose time is not counted, had 5% of the words wrong; without it"
        f" {fused['speedup']:.1f}x"
    )


def _row(name: str, **columns: Any) -> Row:
    """The first row of a benchmark with these columns."""
    rows = _result(name)["rows"]
    return dict(next(row for row in rows if all(row.get(key) == value for key, value in columns.items())))


@cache
def _result(name: str) -> dict[str, Any]:
    return results.load(ROOT / f"docs/benchmarks/{name}.json")


if __name__ == "__main__":
    main()
