"""The page of `mmaccel bench image`: tables, and one picture of what limits speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmaccel.bench.findings import plain_of
from mmaccel.bench.pages import markdown
from mmaccel.bench.winners import ahead, speed
from mmaccel.registry import get_method

TITLE = "Autoregressive images"
INTRO = """
Measured by `mmaccel bench image --full` on the shipped `tiny-janus` (a real `JanusForConditionalGeneration`,
256 tokens a picture, float32). All runs of a table alternate in one process and draw the same prompts; seconds
are medians, speed-ups are medians of the ratios within a round. The raw rows are in [{json}]({json}).

![verify cost, acceptance by depth, quality against time]({png})

Left: what a pass of n tokens costs, against one token. Right: how often the draft at a depth is accepted once
all before it were. Below: distance to real pictures against seconds.
"""
LIMITS = """
- **SpeculativeJacobi** keeps the first draft of a pass less often than the next ones, whatever the window (right), so
  that tokens per pass level off. On a processor a pass of many tokens costs several passes of one (left), and the
  fewest passes are not the least time; a GPU, where a small model's pass costs the same for few and for many tokens, is
  limited by acceptance alone. `window="auto"` pays for the passes that it learns from{auto}.
- In **batches** a step ends with the row that accepts least, and a pass costs more per token, so that narrow windows
  are best on few cores{batches}.
- **GroupedSpeculative** is limited as the former is; it raises the acceptance, by drawing codes of a group for one
  another.
- **ZipAR** makes a fixed number of passes: a row may start `window` tokens behind the one above. Its cost is quality,
  since tokens are drawn without the upper right of the picture; the model was trained to look there.
- **coupling="independent"** resamples all drafts in every pass, which is why wide windows gain nothing.
"""
FASTER = speed("speed")
HEADINGS = ("method", "exact", "seconds", "speed-up", "fewer passes", "distance to real", "nats per token")


def facts(rows: list[dict[str, Any]]) -> dict[str, str]:
    """What exact windows gain and lose on the largest batch with guidance, as the end of a sentence."""
    largest = max(row["batch"] for row in rows)
    exact = [r for r in rows if r["batch"] == largest > 1 and r["guidance"] != 1 and r["exact"]]
    found = [r for r in exact if not _is_single(r)]
    if not found:
        return {"batches": ""}
    best, worst = max(found, key=_speedup), min(found, key=_speedup)
    told = [
        f"our loop without drafts makes {largest} guided pictures {r['speedup']:.2f}x as fast"
        for r in exact
        if _is_single(r)
    ]
    told += [f"`{name(best)}` makes {largest} guided pictures {best['speedup']:.2f}x as fast"]
    told += [f"`{name(worst)}` {worst['speedup']:.2f}x"] if worst["speedup"] < 1 else []
    told += [f'`window="auto"` {r["speedup"]:.2f}x' for r in found if r["settings"]["window"] == "auto"]
    return {"batches": f": {', '.join(told)}"}


def auto(rows: list[dict[str, Any]]) -> dict[str, str]:
    """What `window="auto"` gains beside the best fixed window, all else alike, as the end of a sentence."""
    told = []
    for learned in (row for row in rows if row["settings"].get("window") == "auto"):
        fixed = [
            row
            for row in rows
            if row is not learned and not _is_single(row) and _but_for_window(row) == _but_for_window(learned)
        ]
        if fixed:
            best, case = max(fixed, key=_speedup), _case(learned["batch"], learned["guidance"])
            told.append(f"{learned['speedup']:.2f}x where `{name(best)}` has {best['speedup']:.2f}x ({case})")
    return {"auto": f": {'; '.join(told)}" if told else ""}


def versus(row: dict[str, Any]) -> str:
    """What a row is beside ours: our own loop without drafts is what anyone could write."""
    return "no drafts" if _is_single(row) else ""


def over_cases(rows: list[dict[str, Any]]) -> str:
    """The default of `SpeculativeJacobi` over batches and guidance, against the plain run and no drafts."""
    default = get_method("image.SpeculativeJacobi")().settings()
    ours = [row for row in rows if row["method"] == "image.SpeculativeJacobi" and row["settings"] == default]
    single = {(row["batch"], row["guidance"]): row for row in rows if _is_single(row)}
    pairs = {
        "the plain run": [(row, plain_of([row])) for row in ours],
        "no drafts": [(row, single[case]) for row in ours if (case := (row["batch"], row["guidance"])) in single],
    }
    found = {
        name: ahead(FASTER, each, lambda row: _case(row["batch"], row["guidance"])) for name, each in pairs.items()
    }
    return "\n".join(f"- `SpeculativeJacobi()` against {name}: {told}." for name, told in found.items() if told)


def _is_single(row: dict[str, Any]) -> bool:
    """Whether a row is of our own loop with one token a pass, which drafts nothing."""
    return bool(row["settings"].get("window") == 1)


def _but_for_window(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["batch"], row["guidance"], row["method"], {**row["settings"], "window": None}


def _case(batch: int, guidance: float) -> str:
    return f"batch {batch}, {f'guidance {guidance:g}' if guidance != 1 else 'no guidance'}"


def _speedup(row: dict[str, Any]) -> float:
    return float(row["speedup"])


def tables(rows: list[dict[str, Any]]) -> dict[str, str]:
    """A table for each batch and guidance, under its heading."""
    cases = dict.fromkeys((row["batch"], row["guidance"]) for row in rows)
    return {
        _case(batch, guidance).capitalize(): _table(
            [row for row in rows if (row["batch"], row["guidance"]) == (batch, guidance)]
        )
        for batch, guidance in cases
    }


def _table(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    baseline = f"{_BASELINES[first['baseline']]}, {first['baseline_seconds']:.2f} s, {len(first['seeds'])} rounds"
    return f"Baseline: {baseline}.\n\n{markdown(HEADINGS, [_line(row) for row in rows])}"


def _line(row: dict[str, Any]) -> list[str]:
    return [
        name(row),
        "yes" if row["exact"] else "no",
        f"{row['wall_seconds']:.2f}",
        f"{row['speedup']:.2f}x",
        f"{row['tokens_per_pass']:.2f}x",
        _quality(row, "quality", "baseline_quality"),
        _quality(row, "nats_per_token", "baseline_nats_per_token"),
    ]


_BASELINES = {
    "own generate": "the model's own `generate`",
    "plain loop": "our own loop at one token a pass (the model's own `generate` cannot turn guidance off)",
}


def _quality(row: dict[str, Any], key: str, plain: str) -> str:
    return "" if row.get(key) is None else f"{row[key]:.2f} (plain {row[plain]:.2f})"


def name(row: dict[str, Any]) -> str:
    """Method and the settings that differ from its defaults, as one would type them."""
    return str(get_method(row["method"]).from_settings(row["settings"])).removeprefix("image.")


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Three panels: verify cost, acceptance by depth, quality against time."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    rows = [r for r in found if r["batch"] == 1 and r["guidance"] != 1]
    figure = Figure(figsize=(9, 7.6), layout="constrained")
    places = figure.add_gridspec(2, 2)
    left, right, below = (figure.add_subplot(place) for place in (places[0, 0], places[0, 1], places[1, :]))
    for r in found:
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
            right.plot(range(1, len(shown) + 1), shown, label=r["settings"]["coupling"])
    right.set(xlabel="depth of the draft", ylabel="share accepted", ylim=(0, 1), title="acceptance, window 32")
    _quality_panel(below, rows)
    for axes in (left, right, below):
        axes.grid(alpha=0.3)
        if axes is not below and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    figure.legend(*below.get_legend_handles_labels(), fontsize=8, ncols=3, loc="outside lower center")
    figure.savefig(path, dpi=110)


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
