"""The page of `mmaccel bench canvas`: a table, and a picture of what was committed when."""

from __future__ import annotations

from pathlib import Path

from mmaccel.bench.benchmark import Row
from mmaccel.bench.pages import markdown
from mmaccel.comparison.results import called, cell

TITLE = "Masked and block-diffusion decoders"
INTRO = """
Measured by `mmaccel bench canvas --full` on the shipped `tiny-canvas` (a real `LlavaOnevisionForConditionalGeneration`
that fills blocks of 32 tokens, in diffusers' own `LLaDA2Pipeline`, float32), which lists what a picture shows: 38 to
100 words, and a list is right if every word is. All entries alternate in one process on pictures that the model never
saw; speed-ups are medians of the ratios picture by picture, *worst* is the least of them. The raw rows are in
[{json}]({json}).

*plain* commits one token a step. *fewer steps* is what anyone can do, *own threshold* what the pipeline offers itself
(0.7 is its default), and *word by word* the same weights by their own `generate` with its usual cache, plainly and with
drafts.

![what was committed when, and right lists against time]({png})

Above: each column is a token of one list, and its height the pass that committed it. Below: right lists against time.
"""
LIMITS = """
- **FreeDave** is exact: its lists are those of the plain run, and it can jump only as far as the passes so far foresee
  the next ones, the order of commits included, which near-ties decide. Its passes are over several canvases, which on
  a processor cost more than one: it gains {alone} alone, and beside the cache, where a canvas is a block and not the
  whole text, {both}, against {cache} of the cache by itself. More drafts take fewer passes and more time.
- **PrefixCache** is exact here, since the text before a block does not see it. It saves more the longer prompt and
  text are, and nothing of the first pass. Nothing behind a block is computed in this pipeline, so that the dual cache
  of Fast-dLLM is this one; `IntervalCache` differs from it on models that read in both directions, and
  `WindowDiffusion` in blocks longer than its window.
- **Rules** commit more the surer a model is; one that is sure where it is wrong would lose more than this one.
  {best}. A looser setting trades right lists for passes, and a threshold for each token alone loses lists that a rule
  for all of them together keeps; `Doubling` does not ask the model at all. `AdaptiveBlocks` makes loose rules safer and
  costs passes; `EarlyEnd` spares steps behind the end of a text at one token a step, and costs passes where a rule
  commits those at once.
- **S2D2** and **GuidedCommit** spend a pass to read word by word what they drafted.
- **Word by word** the same weights need one pass over one token for each word. That is little work a pass, so that
  the canvas has to save many passes to win{margin}.
"""
CACHED = " + PrefixCache"
HEADINGS = ("method", "exact", "right", "equal to plain", "passes", "seconds", "speed-up", "worst")


def name(row: Row) -> str:
    """A row as one would type it, with the cache."""
    return called(row).removeprefix("canvas.") + _more(row, " + PrefixCache()")


def series(row: Row) -> str:
    """The line that a row lies on in a picture."""
    return row["method"].removeprefix("canvas.") + _more(row, CACHED)


def _more(row: Row, cache: str) -> str:
    """What stands beside a row's method."""
    beside = row.get("beside", "")
    return (f" + {beside}" if beside else "") + (cache if row["cache"] else "")


def versus(row: Row) -> str:
    """What a row is beside ours: fewer steps without our cache and with it, the own threshold, or word by word."""
    if row["method"].startswith("canvas.") or row["method"] == "one token a step":
        return ""
    return series(row) if row["method"] == "fewer steps" else row["method"].split(",")[0]


def groups(found: list[Row]) -> dict[str, list[Row]]:
    """One table."""
    return {"": [row for row in found if row["method"] != "plain"]}


def facts(found: list[Row]) -> dict[str, str]:
    """The fastest rule that keeps 99 % of the plain run's lists, the canvas against word by word, and FreeDave."""
    least = 0.99 * found[0]["baseline_quality"]
    rules = [r for r in found if r["method"].startswith("canvas.") and not r["exact"] and r["quality"] >= least]
    words = [r for r in found if r["method"].startswith("word by word")]
    best, word = (max(each, key=lambda r: float(r["speedup"]), default=None) for each in (rules, words))
    told, margin = "None kept 99 % of the lists", ""
    if best is not None and word is not None:
        told = f"`{name(best)}` is {best['speedup']:.2f}x as fast as the plain run, with {best['quality']:.0%} right"
        ratio = word["wall_seconds"] / best["wall_seconds"]
        margin = f": {name(word)} takes {ratio:.2f} times as long as the best rule, with {word['quality']:.0%} right"
    return {"best": told, "margin": margin, **_dave(found)}


def _dave(found: list[Row]) -> dict[str, str]:
    """What the verifier gains alone and beside the cache, and what the cache gains."""
    drafted = [r for r in found if r["method"] == "canvas.FreeDave" and not r.get("beside")]
    alone, both = (max(r["speedup"] for r in drafted if r["cache"] == cached) for cached in (False, True))
    cache = next(r["speedup"] for r in found if r["method"] == "one token a step")
    return {"alone": f"{alone:.2f}x", "both": f"{both:.2f}x", "cache": f"{cache:.2f}x"}


def tables(found: list[Row]) -> dict[str, str]:
    """All rows, without the cache and with it."""
    return {
        "Each alone": _table([row for row in found if not row["cache"]]),
        "With PrefixCache": _table([row for row in found if row["cache"]]),
    }


def _table(found: list[Row]) -> str:
    return markdown(HEADINGS, map(_line, found))


def _line(row: Row) -> list[str]:
    return [
        name(row),
        "yes" if row["exact"] else "no",
        f"{row['quality']:.1%}",
        f"{row['equal']:.1%}",
        cell(row["passes"], ".1f"),
        f"{row['wall_seconds']:.3f}",
        f"{row['speedup']:.2f}x",
        f"{row['speedup_worst']:.2f}x",
    ]


def plot(found: list[Row], path: Path) -> None:
    """Which pass committed each token, of the rows that tell it; right lists against time, of all."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    traced = [row for row in found if "committed" in row]
    figure = Figure(figsize=(9, 10), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(2, 3))
    for number, row in enumerate(traced):
        places = [(place, step) for place, step in enumerate(row["committed"]) if step >= 0]
        above.plot(*zip(*places, strict=True), "s", markersize=4, color=f"C{number}", label=name(row))
    above.set_xlabel("token of the canvas")
    above.set_ylabel("step that committed it")
    above.legend(fontsize=8, loc="upper left")
    above.grid(alpha=0.3)
    colors = colormaps["tab20"]
    rest = [row for row in found if row["method"] != "plain"]
    labels = list(dict.fromkeys(series(row) for row in rest))
    kinds = list(dict.fromkeys(label.removesuffix(CACHED) for label in labels))
    for label in labels:
        line = sorted((row for row in rest if series(row) == label), key=lambda row: row["speedup"])
        x, y = [row["speedup"] for row in line], [100 * row["quality"] for row in line]
        again, color = divmod(kinds.index(label.removesuffix(CACHED)), colors.N)
        look = {"marker": ("os" if line[0]["cache"] else "x+")[again], "color": colors(color)}
        below.plot(x, y, "--" if line[0]["kind"] != "method" else "-", label=label, **look)
    below.axhline(100 * found[0]["baseline_quality"], color="0.6", linewidth=1)
    below.set_xlabel("speed-up against one token a step without a cache, wall time")
    below.set_ylabel("lists without a mistake (%)")
    figure.legend(*below.get_legend_handles_labels(), fontsize=7, ncols=3, loc="outside lower center")
    below.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
