"""How the time of an encoder of many views grows with the views, plainly, merged, and with half of the views.

    python -m mmaccel.demos.vlm.many_views --output docs/benchmarks/long/many_views

One pair of blocks of VGGT's size (width 1024, 16 heads), of which VGGT-1B has 24: attention within each view, and over
all of them. The weights are random, so that it tells cost and nothing of quality. Ways take turns; where there are a
thousand views, plainly, that is minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import vlm
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.vlm.multi_view_example import PATCH, VGGT

WIDTH, HEADS, ROWS, COLUMNS = 1024, 16, 6, 8
VIEWS = (10, 30, 100, 300, 1000)
MERGED = "FastVGGT()"
HEADINGS = ("views", "tokens", "tokens in attention", "plain", MERGED, "speed-up", "half of the views")


def measure(views: list[int], turns: int) -> Iterator[dict[str, Any]]:
    """A result after each number of views, with all samples up to then."""
    torch.manual_seed(0)
    model = VGGT(WIDTH, HEADS, depth=1).eval()
    samples: list[dict[str, Any]] = []
    for count in tqdm(views, unit="count of views"):
        generator = torch.Generator().manual_seed(count)
        scene = torch.rand(1, 1, 3, ROWS * PATCH, COLUMNS * PATCH, generator=generator)
        seen = 0.7 * scene + 0.3 * torch.rand(1, count, *scene.shape[2:], generator=generator)
        for turn in range(turns):
            for way in ("plain", MERGED, "half"):
                samples.append({"way": way, "views": count, "turn": turn, **timed(model, way, seen)})
        yield {**results.result([]), "samples": samples}


def timed(model: Any, way: str, views: torch.Tensor) -> dict[str, Any]:
    """Seconds of one call, and what attention over all views got."""
    given = views[:, ::2] if way == "half" else views
    with mmaccel.accelerate(model, vlm.FastVGGT()) if way == MERGED else nullcontext(model) as target:
        began = time.perf_counter()
        target(given)
        seconds = time.perf_counter() - began
        told = target.report.details["views"] if way == MERGED else {}
    return {"seconds": seconds, **told}


def page(result: dict[str, Any]) -> str:
    counts = list(dict.fromkeys(sample["views"] for sample in result["samples"]))
    intro = (
        f"`python -m mmaccel.demos.vlm.many_views`: one pair of blocks of VGGT's size (width {WIDTH}, {HEADS} heads),"
        f" on views of {ROWS} x {COLUMNS} patches. Seconds are medians of turns, speed-ups medians of ratios in a turn."
        " The weights are random: this is cost, and tells nothing of quality. Half of the views leave out what the"
        " other half shows. All is in [many_views.json](many_views.json)."
    )
    table = pages.markdown(HEADINGS, [_line(result["samples"], count) for count in counts])
    return pages.page(result, "Many views of a scene", intro, {"One pair of blocks": table})


def _line(samples: list[dict[str, Any]], count: int) -> list[str]:
    plain, merged, half = (
        [s for s in samples if s["views"] == count and s["way"] == way] for way in ("plain", MERGED, "half")
    )

    def ratio(some: list[dict[str, Any]]) -> float:
        return results.median(p["seconds"] / s["seconds"] for p, s in zip(plain, some, strict=True))

    seconds = [results.median(s["seconds"] for s in some) for some in (plain, merged)]
    told = merged[0]
    return [
        str(count),
        str(told["tokens"]),
        str(told["merged into"]),
        *(f"{each:.2f} s" for each in seconds),
        f"{ratio(merged):.2f}x",
        f"{ratio(half):.2f}x",
    ]


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        views={"type": int, "nargs": "+", "default": list(VIEWS), "help": "numbers of views"},
        turns={"type": int, "default": 3, "help": "times that each is measured (default 3)"},
    )
