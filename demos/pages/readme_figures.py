"""The figures of README.md, written from the committed rows of the benchmarks; nothing is measured::

python -m mmaccel.demos.pages.readme_figures

Each stands between two comments, which name the sentence: `<!-- figures: wan -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from mmaccel.bench.pages import markdown
from mmaccel.comparison import results
from mmaccel.demos.gpu.page import halved, shape
from mmaccel.presets import presets_of
from mmaccel.vlm.bench.text import MODES

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def main() -> None:
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")


def rewritten(text: str) -> str:
    """A text whose figures are those of the committed rows."""
    figures = {"wan": _wan, "qwen": _qwen, "machine": _machine, "others": _others}
    return BLOCK.sub(lambda found: f"{found[1]}{figures[found[2]]()}{found[3]}", text)


def _wan() -> str:
    ours, steps = presets_of("video", "diffusion transformer")["balanced"].row, _row("video", label="20 steps")
    assert ours["model"] == steps["model"]
    return (
        f"**{ours['speedup']:.1f}x** on `tiny-wan` at 40 steps: {_psnr(_row('video', kind='ours', budget=0.5))} to the"
        f" plain clip over {len(steps['seeds'])} prompts.\n20 steps take as long and have {_psnr(steps)}."
    )


def _psnr(row: Row) -> str:
    return f"{row['quality']:.0f} dB ({row['psnr_worst']:.0f} dB for the worst)"


def _qwen() -> str:
    ours = presets_of("vlm", "vision_language")["balanced"].row
    row = _row("vlm", method="vlm.VidCom2", share=0.15, table="brief")
    second, seventh = (_row("vlm", table="brief", method="fewer frames", settings={"step": step}) for step in (2, 7))
    slow = _row("vlm", table="slow", method="fewer frames", settings={"step": 7})
    questions = re.search(r"\d+", row["quality_metric"])
    assert questions and ours["speedup"] == row["speedup"]
    return (
        f"**{row['speedup']:.1f}x** to the first token, and **{row['first_token_speedup']:.1f}x** behind the vision"
        f" tower, on `tiny-onevision`,\nwhich then answers {row['quality']:.0%} of {questions[0]} questions about"
        f" brief events right instead of {row['baseline_quality']:.0%}. Every 2nd frame alone\n"
        f"answers {second['quality']:.0%} of them ({second['speedup']:.1f}x to the first token), every 7th "
        f"{seventh['quality']:.0%}; where all is slow every 7th answers {slow['quality']:.0%}, {slow['speedup']:.1f}x"
        " as fast."
    )


def _machine() -> str:
    headers = {name: _result(name)["header"] for name in NAMES}
    machines = {header["machine"]["processor"] for header in headers.values()}
    threads = {name: header["threads"] for name, header in headers.items()}
    assert len(machines) == 1 and set(threads.values()) <= {1, 2}
    alone = [name for name, count in threads.items() if count == 1]
    on, but = ("1 thread", "") if len(alone) == len(threads) else ("2 threads", f";\n{' and '.join(alone)} on 1")
    return (
        f"**Not measured yet: the checkpoints above.** {_gpu()}\nAll other figures are of the small models of the same"
        f" classes that come with mmaccel, on {on} of an {machines.pop()}{but if alone else ''}."
        "\n`mmaccel.compare` measures your model on your machine."
    )


def _gpu() -> str:
    """Half of the steps of full-size shapes, whose weights are random."""
    found = results.load(ROOT / "docs" / "benchmarks" / "long" / "gpu.json")
    *others, last = [f"{row['speedup']:.2f}x on {shape(row)}" for row in halved(found["rows"])]
    card = found["header"]["machine"]["accelerator"].removesuffix(" 80GB HBM3")
    return (
        f"On an {card} and random weights, computing half of the steps is\n{', '.join(others)} and {last}"
        " ([on a GPU](docs/benchmarks/long/gpu.md))."
    )


NAMES = ("image", "video", "vlm", "text", "speech")


def _others() -> str:
    """One line for each thing that the snippets do not show."""
    exact, balanced = (presets_of("image", "janus")[name].row for name in ("exact", "balanced"))
    text = presets_of("vlm", "decoder")["exact"].row
    drafts = _row("speech", method="drafts in the stream, packed weights")
    filled = _row("canvas", method="canvas.FactorCommit", cache=True, settings={"factor": 0.25})
    page = _row("pages", method="vlm.DocumentDraft", wrong=0.05)
    distance = f"distance to real pictures {balanced['quality']:.1f}, plain {balanced['baseline_quality']:.1f}"
    lines = [
        ("`tiny-janus` draws", '`preset="exact"`', f"{exact['speedup']:.1f}x", "the very picture of a seed"),
        ("`tiny-janus` draws", '`preset="balanced"`', f"{balanced['speedup']:.1f}x", distance),
        ("SmolLM2-135M writes", '`preset="exact"`', f"{text['speedup']:.1f}x", _text_quality()),
        ("`tiny-reader` reads a page", "`vlm.DocumentDraft()`", f"{page['speedup']:.1f}x", _page_quality()),
        (
            "`tiny-canvas` fills blocks",
            "`canvas.FactorCommit()` and `canvas.PrefixCache()`",
            f"{filled['speedup']:.1f}x",
            _canvas_quality(filled),
        ),
        (
            "Moonshine tiny hears a stream",
            "`speech.StreamingRecognizer(..., packed=True)`",
            f"{drafts['speedup']:.1f}x",
            "the events of the same stream without drafts",
        ),
    ]
    return markdown(("what", "how", "speed-up", "quality"), lines)


def _canvas_quality(row: Row) -> str:
    words = _row("canvas", method="word by word, drafted")
    fewer = max(r["speedup"] for r in _result("canvas")["rows"] if r["kind"] == "simple" and r["quality"] == 1)
    return (
        f"{row['quality']:.0%} of its lists without a mistake; fewer steps have {fewer:.1f}x, the same weights word by"
        f" word {words['speedup']:.1f}x (all on an {_result('canvas')['header']['machine']['processor']})"
    )


def _page_quality() -> str:
    fused = _row("pages", method="vlm.FusedDraft", wrong=0.05)
    return (
        "the very tokens, with 5% of the words of a light pipeline wrong, whose time is not counted; FusedDraft has"
        f" {fused['speedup']:.1f}x (all on an {_result('pages')['header']['machine']['processor']})"
    )


def _text_quality() -> str:
    lookup = _row("text", kind="rival", mode="greedy")
    drawn = _row("text", method="vlm.FusedDraft", mode=MODES[1].name)
    return (
        f"the very tokens, greedy, mean of 7 kinds of text; prompt lookup has {lookup['speedup']:.1f}x;"
        f" {drawn['speedup']:.1f}x where drawn at temperature 1"
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
