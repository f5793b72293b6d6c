"""The page and the plot of `mmaccel bench vlm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmaccel.bench.pages import markdown
from mmaccel.comparison.results import called

TITLE = "Video questions"
INTRO = """
Measured by `mmaccel bench vlm` on `tiny-onevision` (a real LLaVA-OneVision of small size, trained by
`mmaccel.demos.training.onevision.train` and `mmaccel.demos.training.onevision.thin`), clips of 32 frames,
2,048 visual tokens, greedy answers. *right* is the share of held-out questions answered word for word, *kept* that
share against all tokens'. *tokens* is the share of the visual tokens that the language model got, a mean over its
layers: where a method drops some of them inside it, `keep` says another share, and methods are to be compared by this
one. *first token* is the time from the end of the vision tower to the first token, compression included; *end to end*
has the tower too; both are ratios to the plain model in one alternation. *fewer frames* is the plain model on every
n-th frame. The raw rows are in [{json}]({json}).

![accuracy against time]({png})
"""

LIMITS = """
- **Fewer frames** of clips as slow as these lose nothing, and save the tower's time too: no method that begins behind
  the tower can be as fast. Clips in which more happens between two frames are what methods are for.
- **`HoliTom`** stores what stands still once, in the first frame of a segment. The tower of this small model finds
  adjacent frames more alike than large ones do, so that the paper's tau takes moving things for still ones, and 0.9
  fewer. Still tokens are clustered by `exp(-d^2)` of their distances, and so by the size of tokens: with tokens as
  large as they came from training fewer questions were right than with small ones, and the model is shipped with
  these, at which it answers as at any other size. What moves then has tokens in every frame, and what
  stands only a few in all: of three things the model overlooked one, whatever was merged, until it was trained on
  things shown so unevenly.
- **`EarlyTom`** merges frames in the middle of a segment only: short segments spare less of the tower's work than long
  ones do.
- **Methods by attention** compute the tower's last attention once more to read it, which costs a part of the tower.
"""
HEADINGS = (
    "method",
    "right",
    "kept",
    "tokens",
    "first token",
    "speed-up",
    "tower",
    "end to end",
    "tokens/s",
    "cache",
)


def tables(found: list[dict[str, Any]]) -> dict[str, str]:
    """For each share of the tokens a table of all entries."""
    shares = sorted({r["share"] for r in found if r["share"] < 1}, reverse=True)
    return {f"{share:.0%} of the tokens": _table([r for r in found if r["share"] in (1.0, share)]) for share in shares}


def _table(group: list[dict[str, Any]]) -> str:
    lines = []
    for r in sorted(group, key=lambda r: (r["share"] < 1, -r["quality"])):
        lines.append(
            [
                label(r),
                f"{r['quality']:.1%}",
                f"{r['quality'] / max(r['baseline_quality'], 1e-9):.1%}",
                f"{r['visual_share']:.1%}",
                f"{1000 * r['first_token_seconds']:.0f} ms",
                f"{r['first_token_speedup']:.2f}x",
                f"{r['tower_speedup']:.2f}x",
                f"{r['speedup']:.2f}x",
                f"{r['tokens_per_second']:.0f}",
                f"{r['cache_bytes'] / 2**20:.1f} MiB",
            ]
        )
    return markdown(HEADINGS, lines)


def label(row: dict[str, Any]) -> str:
    """The method with the settings that are not its defaults, but for how much it keeps, which the tables tell."""
    if row.get("kind") in ("plain", "simple"):
        return str(row["method"])
    settings = {name: value for name, value in row["settings"].items() if name != "keep"}
    return called({**row, "settings": settings}).removeprefix("vlm.").removesuffix("()")


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the time to the first token, one line a method."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    plain = next(r for r in found if r["share"] == 1.0)
    axes.axhline(100 * plain["quality"], color="0.6", linewidth=1)
    axes.annotate("all tokens", (1.0, 100 * plain["quality"]), fontsize=9, va="bottom")
    shares = ", ".join(f"{share:.0%}" for share in sorted({r["share"] for r in found if r["share"] < 1}, reverse=True))
    names = sorted({label(r) for r in found if r["share"] < 1}, key=lambda n: (n == "fewer frames", n))
    colors = colormaps["tab20"]
    for number, name in enumerate(names):
        line = sorted((r for r in found if label(r) == name), key=lambda r: r["share"])
        x, y = [r["speedup"] for r in line], [100 * r["quality"] for r in line]
        style = {"color": "black", "linestyle": "--"} if name == "fewer frames" else {"color": colors(number % 20)}
        axes.plot(x, y, marker="o", label=name, **style)
    axes.set_xlabel("speed-up to the first token, vision tower included")
    axes.set_ylabel("questions answered right (%)")
    axes.set_title(f"{shares} of the visual tokens")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
