"""The page of `mmaccel bench pictures`: a table, and distance against time."""

from __future__ import annotations

from mmaccel.bench.benchmark import Row
from mmaccel.bench.pages import markdown
from mmaccel.comparison.results import called, cell

TITLE = "Masked pictures"
INTRO = """
Measured by `mmaccel bench pictures --full` on the shipped `tiny-amused` (diffusers' own `AmusedPipeline`, float32),
which fills a canvas of 16 x 16 codes, beside `tiny-janus`, which draws the same pictures in the same codes one after
the other. All entries alternate in one process, one picture at a time and without decoding it; speed-ups are medians
of the ratios picture by picture, *worst* is the least of them. *Distance*: {metric}, on their codes
(`mmaccel.image.bench.distances`), of captions that were never trained on; real pictures of the same captions have
{floor}. The raw rows are in [{json}]({json}).

*plain* is the pipeline's default of 12 steps with the model's own guidance.

{plot}
"""
LIMITS = """
- **A canvas or drafts?** {answer}
- **HaltonOrder** draws together what lies far apart, and ends after its own number of steps. {halton}
- **LateGuidance** leaves out the branch without a prompt for a share of the steps: half of their work.
- **EntropyBound, FactorCommit, CreditDecoding, CoherentContext, Doubling** add to what the schedule commits, and were
  made for texts, where much is sure at once. Here each code is drawn from many that are likely, so that a rule that
  waits for certainty adds little before the last steps.
- **Fewer steps** may be nearer than more. A likely reason, not measured: the pipeline's own order takes the surest
  codes first, plain paper above all, and does so more often the more steps there are.
"""
HEADINGS = ("method", "distance", "passes", "seconds", "speed-up", "worst")


def name(row: Row) -> str:
    """A row as one would type it."""
    told: str = row["method"] if "+" in row["method"] else called(row)
    steps = f"({row['steps']})" if row["method"] in ("fewer steps", "more steps") else ""
    return told.replace("canvas.", "") + steps


def series(row: Row) -> str:
    """The line that a row lies on in a picture."""
    if row["method"].startswith("tiny-janus"):
        return "tiny-janus"
    if "+" in row["method"]:
        return "HaltonOrder + LateGuidance"
    return str(row["method"]).removeprefix("canvas.")


def facts(found: list[Row]) -> dict[str, str]:
    """The canvas against drafts, and the order of Halton against fewer steps."""
    metric = found[0]["quality_metric"]
    return {
        "metric": metric,
        "floor": cell(found[0]["real_quality"], ".2f"),
        "answer": _answer(found),
        "halton": _halton(found),
    }


def _answer(found: list[Row]) -> str:
    """How far and how fast each model is at its best, and the fastest canvas that is as near as the best drafts."""
    judged = [row for row in found if row["quality"] is not None]
    words = [row for row in judged if row["model"] == "tiny-janus"]
    if not words:
        return "Measured with `--full` only."
    fills = [row for row in judged if row["model"] != "tiny-janus"]
    fastest = min(words, key=lambda row: float(row["wall_seconds"]))
    near = min(words, key=lambda row: float(row["quality"]))
    canvas = min(fills, key=lambda row: float(row["quality"]))
    told = (
        f"The nearest canvas, {name(canvas)}, has a distance of {canvas['quality']:.2f} in"
        f" {canvas['wall_seconds']:.3f} s; the nearest of tiny-janus, {name(near)}, {near['quality']:.2f} in"
        f" {near['wall_seconds']:.3f} s, and the fastest, {name(fastest)}, {fastest['quality']:.2f} in"
        f" {fastest['wall_seconds']:.3f} s."
    )
    equal = [row for row in fills if row["quality"] <= fastest["quality"]]
    if not equal:
        return told + " No canvas is as near as the fastest drafts."
    best = min(equal, key=lambda row: float(row["wall_seconds"]))
    ratio = fastest["wall_seconds"] / best["wall_seconds"]
    return told + f" {name(best)} is as near as that in {best['wall_seconds']:.3f} s, {ratio:.1f} times as fast."


def _halton(found: list[Row]) -> str:
    """Distances at equal numbers of steps."""
    by_steps = {row["steps"]: row for row in found if row["method"] == "fewer steps"}
    pairs = [(row, by_steps.get(row["settings"]["steps"])) for row in found if row["method"] == "canvas.HaltonOrder"]
    told = [
        f"{own['settings']['steps']} steps {own['quality']:.2f} against {other['quality']:.2f}"
        for own, other in pairs
        if other is not None and own["quality"] is not None
    ]
    return f"Distance beside that of as few steps in the pipeline's own order: {', '.join(told)}." if told else ""


def tables(found: list[Row]) -> dict[str, str]:
    """All rows."""
    return {"All entries": markdown(HEADINGS, map(_line, found))}


def _line(row: Row) -> list[str]:
    return [
        name(row),
        cell(row["quality"], ".2f"),
        cell(row["passes"], ".1f"),
        f"{row['wall_seconds']:.3f}",
        f"{row['speedup']:.2f}x",
        f"{row['speedup_worst']:.2f}x",
    ]
