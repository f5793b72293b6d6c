"""docs/benchmarks/image.md from a result: tables, and one picture of what limits speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INTRO = """# Autoregressive image models

Measured by `mmaccel bench image --full` on the shipped `tiny-janus` (a real `JanusForConditionalGeneration`,
256 tokens a picture, float32). All runs of a table alternate in one process and draw the same prompts; seconds
are medians, speed-ups are medians of the ratios within a round. The raw rows are in
[{json}]({json}).

- versions: {versions}
- machine: {machine}, {threads} threads
- date: {date}

![verify cost, acceptance by depth, quality against time]({plot})

Left: what a pass of n tokens costs, against one token. Middle: how often the draft at a depth is accepted once
all before it were. Right: distance to real pictures against seconds.

## What limits each

- **SpeculativeJacobi** keeps the first draft of a pass about every second time, whatever the window, and deeper ones
  four times in five: tokens per pass level off at 5. On this processor a pass of 16 tokens costs 1.6 passes of one,
  and of 64 3.5 (left), so that the fewest passes are not the least time; a GPU, where a small model's pass costs the
  same for 1 and for 64 tokens, is limited by acceptance alone. `window="auto"` stays a little below the best fixed
  window, since it pays for the passes that it learns from.
- In **batches** a step ends with the row that accepts least, and a pass costs more per token: at four guided pictures
  on two cores nothing is left to win, and `"auto"` decodes plainly.
- **GroupedSpeculative** is limited as the former is; it raises the acceptance, by drawing codes of a group for one
  another.
- **ZipAR** makes a fixed number of passes: a row may start `window` tokens behind the one above. Its cost is quality,
  since tokens are drawn without the upper right of the picture; the model was trained to look there.
- **coupling="independent"** resamples all drafts in every pass, which is why wide windows gain nothing.
"""


def page(result: dict[str, Any], plot: str) -> str:
    """The whole page."""
    header, rows = result["header"], result["rows"]
    parts = [
        INTRO.format(
            versions=", ".join(f"{k} {v}" for k, v in header["versions"].items()),
            machine=", ".join(f"{v}" for v in header["machine"].values()),
            threads=header["threads"],
            date=header["date"],
            plot=plot,
            json=Path(plot).with_suffix(".json").name,
        )
    ]
    for batch, guidance in dict.fromkeys((r["batch"], r["guidance"]) for r in rows):
        group = [r for r in rows if (r["batch"], r["guidance"]) == (batch, guidance)]
        parts.append(_section(batch, guidance, group))
    return "\n".join(parts)


def _section(batch: int, guidance: float, rows: list[dict[str, Any]]) -> str:
    guided = f"guidance {guidance:g}" if guidance != 1 else "no guidance"
    base = rows[0]["baseline"]
    lines = [
        f"## Batch {batch}, {guided}\n",
        f"Baseline: {_BASELINES[base]}, {rows[0]['baseline_seconds']:.2f} s, {len(rows[0]['seeds'])} rounds.\n",
        "| method | exact | seconds | speed-up | fewer passes | distance to real | nats per token |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        quality = _quality(r, "quality", "baseline_quality")
        nats = _quality(r, "nats_per_token", "baseline_nats_per_token")
        lines.append(
            f"| {name(r)} | {'yes' if r['exact'] else 'no'} | {r['wall_seconds']:.2f} | {r['speedup']:.2f}x"
            f" | {r['tokens_per_pass']:.2f}x | {quality} | {nats} |"
        )
    return "\n".join(lines) + "\n"


_BASELINES = {
    "own generate": "the model's own `generate`",
    "plain loop": "our own loop at one token a pass (the model's own `generate` cannot turn guidance off)",
}


def _quality(row: dict[str, Any], key: str, plain: str) -> str:
    return "" if row.get(key) is None else f"{row[key]:.2f} (plain {row[plain]:.2f})"


def name(row: dict[str, Any]) -> str:
    """Method and the settings that differ from its defaults, as one would type them."""
    from mmaccel.registry import get_method

    return str(get_method(row["method"]).from_settings(row["settings"])).removeprefix("image.")


def plot(result: dict[str, Any], path: Path) -> None:
    """Three panels: verify cost, acceptance by depth, quality against time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    rows = [r for r in result["rows"] if r["batch"] == 1 and r["guidance"] != 1]
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 3.8), constrained_layout=True)
    for r in result["rows"]:
        if r.get("verify_cost"):
            cost = r["verify_cost"]
            guided = "guided" if r["guidance"] != 1 else "unguided"
            relative = [t / cost["times"][0] for t in cost["times"]]
            left.plot(cost["buckets"], relative, marker="o", label=f"batch {r['batch']}, {guided}")
    left.set(xscale="log", yscale="log", xlabel="tokens in a pass", ylabel="time of a pass / one token")
    left.set_title("verify cost")
    for axis, ticks in ((left.xaxis, (1, 4, 8, 16, 32, 64)), (left.yaxis, (1, 2, 4, 8))):
        axis.set_major_locator(ticker.FixedLocator(ticks))
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter(ticker.ScalarFormatter())
    for r in rows:
        if r["method"] == "image.SpeculativeJacobi" and r["settings"]["window"] == 32:
            shown = _well_tested(r)
            middle.plot(range(1, len(shown) + 1), shown, label=r["settings"]["coupling"])
    middle.set(xlabel="depth of the draft", ylabel="share accepted", ylim=(0, 1), title="acceptance, window 32")
    _quality_panel(right, rows)
    for axis in (left, middle, right):
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            outside = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if axis is right else {}
            axis.legend(fontsize=8, **outside)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _well_tested(row: dict[str, Any], least: float = 30) -> list[float]:
    """Acceptance of the depths that at least so many drafts reached."""
    reached, shown = row["passes"] * len(row["seeds"]), []
    for share in row["acceptance"]:
        if reached < least:
            break
        shown.append(share)
        reached *= share
    return shown


def _quality_panel(axis: Any, rows: list[dict[str, Any]]) -> None:
    judged = [r for r in rows if r.get("quality") is not None]
    if judged:
        axis.scatter(judged[0]["baseline_seconds"], judged[0]["baseline_quality"], color="black", label="plain")
        axis.axhline(judged[0]["real_quality"], color="gray", linestyle=":", label="other real pictures")
    for r in judged:
        axis.scatter(r["wall_seconds"], r["quality"], label=name(r))
    axis.set(
        xlabel="seconds a picture", ylabel="distance to real pictures", title="quality against time", ylim=(0, None)
    )
