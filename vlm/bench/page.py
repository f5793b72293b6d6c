"""The page and the plot of `mmaccel bench vlm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmaccel.bench import result as bench

INTRO = """
Measured by `mmaccel bench vlm` on `tiny-onevision` (a real LLaVA-OneVision of small size, trained by
`mmaccel.demos.training.train_tiny_onevision` and `mmaccel.demos.training.thin_tiny_onevision`), clips of 32 frames,
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
  adjacent frames more alike than large ones do, so that the paper's tau of 0.8, and of 0.65 for a tenth, takes moving
  things for still ones, and 0.9 fewer. Still tokens are clustered by `exp(-d^2)` of their distances, and so by the size
  of tokens. With tau=0.9, of 160 questions other than these, 97.5 % were right at 15 % and 94.4 % at 10 % with tokens
  as large as they came from training (root mean square 33), 96.3 % and 96.9 % at a size of 1, and 98.8 % and 99.4 %
  at 0.26, below which nothing changed. The model is shipped with the last, at which it answers as at any other.
  What moves then has tokens in every frame, and what stands only a few in all: of three things the model overlooked
  one, whatever was merged, until it was trained on things shown so unevenly.
- **`EarlyTom`** merges frames in the middle of a segment only: of segments of at most 5 frames a quarter of the tower's
  work goes, of 15 frames a third.
- **Methods by attention** compute the tower's last attention once more to read it, which costs 5 to 10 % of the tower.
"""


def write_page(result: dict[str, Any], path: Path) -> None:
    """The Markdown page of a result, and its plot."""
    found = result["rows"]
    sections = {}
    for share in sorted({r["share"] for r in found if r["share"] < 1}, reverse=True):
        group = [r for r in found if r["share"] in (1.0, share)]
        sections[f"{share:.0%} of the tokens"] = _table(group)
    sections["What limits each"] = LIMITS.strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_suffix(".png")
    plot(found, picture)
    intro = INTRO.format(json=path.with_suffix(".json").name, png=picture.name)
    path.write_text(bench.page(result, "Video language models with fewer tokens", intro, sections), encoding="utf-8")


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
    headings = (
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
    return bench.markdown(headings, lines)


def label(row: dict[str, Any]) -> str:
    """The method with the settings that are not its defaults, but for how much it keeps, which the tables tell."""
    if row.get("kind") in ("plain", "simple"):
        return str(row["method"])
    settings = {name: value for name, value in row["settings"].items() if name != "keep"}
    return bench.called({**row, "settings": settings}).removeprefix("vlm.").removesuffix("()")


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the time to the first token, one line a method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    plain = next(r for r in found if r["share"] == 1.0)
    axes.axhline(100 * plain["quality"], color="0.6", linewidth=1)
    axes.annotate("all tokens", (1.0, 100 * plain["quality"]), fontsize=9, va="bottom")
    names = sorted({label(r) for r in found if r["share"] < 1}, key=lambda n: (n == "fewer frames", n))
    colors = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for number, name in enumerate(names):
        line = sorted((r for r in found if label(r) == name), key=lambda r: r["share"])
        x, y = [r["speedup"] for r in line], [100 * r["quality"] for r in line]
        style = {"color": "black", "linestyle": "--"} if name == "fewer frames" else {"color": colors[number % 20]}
        axes.plot(x, y, marker="o", label=name, **style)
    axes.set_xlabel("speed-up to the first token, vision tower included")
    axes.set_ylabel("questions answered right (%)")
    axes.set_title("25, 20, 15 and 10 % of the visual tokens")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
