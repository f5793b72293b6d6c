"""Tune: quality against time of a method on the user's own model and input, and the plan that reaches a goal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..comparison.compare import compare
from ..comparison.comparison import Comparison
from ..errors import SettingError
from ..files.output import replacing
from ..method import Method
from ..plan import Plan, plan
from ..registry import saved_method
from .curve import Goal, Point, describe, point, quality_of
from .grid import Grid, settings_of

BUSY = 1.5  # slowest plain run divided by the fastest
FORMATS = (".json", ".png", ".html")


@dataclass(frozen=True)
class Tuning:
    """What `tune` measured and picked.

    Attributes
    ----------
    comparison
        All runs, as :func:`mmaccel.compare` shows them; ``comparison.save("rows.json")`` has every one.
    curve
        A point for each setting that engaged, from the slowest to the fastest.
    plan
        The setting that reaches the goal, with the curve; None if none does.
    notes
        Remarks to read before using the plan.
    """

    comparison: Comparison
    curve: list[Point]
    plan: Plan | None
    notes: list[str]
    goal: Goal

    @property
    def picked(self) -> Point | None:
        """The point of the plan."""
        if self.plan is None:
            return None
        method = self.plan.methods[0]
        return next(found for found in self.curve if saved_method(found) == method)

    @property
    def by_chance(self) -> bool:
        """Whether all settings draw from the plain distribution, so that their samples differ in quality by luck."""
        rows = [row for row in self.comparison.rows if row["kind"] == "method" and not row["idle"]]
        return bool(rows) and all(row["same_distribution"] for row in rows)

    def save(self, path: str | Path) -> None:
        """Write the plan with its curve (.json), a plot of the curve (.png), or the page of the comparison (.html).

        Raises
        ------
        SettingError
            If the name has another ending, or a plan is asked for and no setting reached the goal.
        OSError
            If the file cannot be written; the error says why.
        """
        path = Path(path)
        check_format(path)
        kind = path.suffix.lower()
        if kind == ".json" and self.plan is None:
            raise SettingError(f"there is no plan to save: {self.notes[0]}")
        if kind == ".html":
            self.comparison.save(path)
        elif self.plan is not None and kind == ".json":
            self.plan.save(path)
        else:
            from .plot import plot  # needs matplotlib

            with replacing(path) as temporary:
                plot(self.comparison, self.goal, self.picked, self.by_chance, temporary)

    def __str__(self) -> str:
        found = self.picked
        said = "nothing was picked" if found is None else f"picked {saved_method(found)}: {describe(found)}"
        luck = (
            ["every setting draws from the plain distribution: quality differs by chance alone"]
            if self.by_chance
            else []
        )
        return "\n".join([str(self.comparison), *luck, *self.notes, said])

    __repr__ = __str__  # what a notebook shows


def tune(
    target: Any,
    method: Method | type[Method],
    *,
    grid: Grid | None = None,
    target_speedup: float | None = None,
    floor: float | None = None,
    seeds: Iterable[int] = (0,),
    rounds: int | None = None,
    simple: bool = True,
    processor: Any = None,
    ranks: bool = False,
    **inputs: Any,
) -> Tuning:
    """Measure settings of a method on a target's own call, and pick the one that reaches a speed-up or keeps a quality.

    All settings, the plain run and the simple alternative take turns in one :func:`mmaccel.compare`. With
    `target_speedup` the best quality that reaches it is picked, with `floor` the fastest setting that keeps it, with
    both the fastest that meets both. If every setting is exact, neither is needed, and the fastest is picked.

    Parameters
    ----------
    target
        A transformers model or diffusers pipeline.
    method
        A class, or an instance whose other settings stay.
    grid
        Values by setting, of which all combinations are measured, or the methods themselves. Default: a few values of
        the first of budget, keep, tokens, threshold, window, interval, block, spatial, factor, bound, anchor and drafts
        that the method is given; an `interval` in place of a budget that it overrides.
    target_speedup
        Measured speed-up to reach, above 1; within 3 % of it counts.
    floor
        Quality that the worst seed has to keep, in the first metric of the comparison: PSNR in dB for video, the share
        of equal answers for vision-language models; for images the surprise in nats, at most.
    seeds, rounds, simple, processor, ranks, **inputs
        As in :func:`mmaccel.compare`.

    Raises
    ------
    SettingError, ConflictError, UnknownNameError, UnsupportedTargetError
        Before anything runs.

    Examples
    --------
    >>> import mmaccel
    >>> from mmaccel import video, zoo
    >>> pipe = zoo.load("tiny-wan")
    >>> found = mmaccel.tune(
    ...     pipe, video.HeterogeneousSteps, target_speedup=1.8, prompt="rocket moves up", seeds=range(2)
    ... )  # doctest: +SKIP
    >>> found.save("plan.json")  # doctest: +SKIP
    """
    goal = Goal(target_speedup, floor)
    settings = settings_of(target, method, grid)
    if target_speedup is None and floor is None and not all(each.exact for each in settings):
        raise SettingError("set a goal: target_speedup=1.8, or floor= with the lowest quality (or both)")
    measure = {"seeds": seeds, "rounds": rounds, "simple": simple, "processor": processor, "ranks": ranks}
    made = compare(target, *settings, **measure, **inputs)
    metric = made.metrics[0]
    goal = replace(goal, higher_is_better=metric.higher_is_better)
    rows = [row for row in made.rows if row["kind"] == "method"]
    measured = sorted(
        (
            (point(each, row["speedup"], metric.key, metric.title, row["quality"], row["quality_worst"]), row, each)
            for each, row in zip(settings, rows, strict=True)
            if not row["idle"]
        ),
        key=lambda found: float(found[0]["speedup"]),
    )
    curve = [found for found, _, _ in measured]
    number = goal.pick(curve)
    chosen = None if number is None else replace(plan(target, measured[number][2]), measured=curve)
    notes = [*_reach(goal, curve, number), *_noise(goal, [row for _, row, _ in measured], number, made.rows[0])]
    notes += [] if number is None else _simpler(goal, curve[number], made.rows)
    return Tuning(made, curve, chosen, notes, goal)


def check_format(path: str | Path) -> None:
    """Raise a `SettingError` for an unknown file ending, before any work is done."""
    if Path(path).suffix.lower() not in FORMATS:
        raise SettingError(f"cannot write {Path(path).name!r}: end it with .json (plan), .png (curve) or .html (page)")


def _reach(goal: Goal, curve: list[Point], number: int | None) -> list[str]:
    """Notes on whether the goal lies within the observed range."""
    if not curve:
        return ["no setting engaged, so there is nothing to pick: see the reasons above"]
    if number is None:
        return [_missed(goal, curve)]
    best = curve[number]
    if goal.floor is None and goal.target_speedup and len(curve) > 1 and all(goal.is_fast(found) for found in curve):
        return [
            f"every setting reached {goal.target_speedup:g}x: a milder one than {saved_method(best)} may do, see grid="
        ]
    if goal.floor is not None and len(curve) > 1 and number == len(curve) - 1:
        return [f"even the fastest setting kept {goal.floor:g}: one that saves more may do, see grid="]
    return []


def _missed(goal: Goal, curve: list[Point]) -> str:
    wanted = [f"{goal.target_speedup:g}x"] if goal.target_speedup is not None else []
    wanted += [f"{curve[0]['title']} {goal.floor:g}"] if goal.floor is not None else []
    good = [found for found in curve if goal.is_good(found)]
    if good:  # too slow
        near = max(good, key=lambda found: float(found["speedup"]))
    else:
        near = max(curve, key=lambda found: goal.sign * (found["worst"] or 0.0))
    worst = f" (worst seed {near['worst']:.4g})" if goal.floor is not None and near["worst"] is not None else ""
    text = f"no setting reached {' with '.join(wanted)}: the closest is {saved_method(near)}, {describe(near)}{worst}"
    return f"{text}; widen grid=, or ask for less"


def _simpler(goal: Goal, picked: Point, rows: list[dict[str, Any]]) -> list[str]:
    """Whether the simple alternative is as good without a method."""
    quality = quality_of(picked)
    if quality is None or picked["exact"]:
        return []
    found = [row for row in rows if row["kind"] == "simple" and row["speedup"] >= picked["speedup"]]
    found = [row for row in found if row["quality"] is not None and goal.sign * (row["quality"] - quality) >= 0]
    best = max(found, key=lambda row: goal.sign * float(row["quality"]), default=None)
    if best is None:
        return []
    return [f"{best['label']} is no slower and no worse than the pick: {best['speedup']:.2f}x, {best['quality']:.4g}"]


def _noise(goal: Goal, rows: list[dict[str, Any]], number: int | None, plain: dict[str, Any]) -> list[str]:
    """Whether the rounds of the plain run differ much, or those of one setting more than the settings do."""
    least, most = plain["wall_range"]
    found = [f"the machine is busy: the plain run took {least:.3g} to {most:.3g} s"] if most > BUSY * least else []
    if len(rows) > 1:
        widest = max(rows, key=_spread)
        apart = rows[-1]["speedup"] - rows[0]["speedup"]
        if _spread(widest) > apart:
            found.append(
                f"the timings are too noisy: rounds of {widest['label']} differ by {_spread(widest):.2f}x,"
                f" the settings by {apart:.2f}x; give more rounds= or a quieter machine"
            )
    if number is not None and goal.target_speedup is not None:
        low, high = rows[number]["speedup_range"]
        if low < goal.target_speedup:
            found.append(
                f"its rounds gave {low:.2f}x to {high:.2f}x, not always the {goal.target_speedup:g}x asked for"
            )
    return found


def _spread(row: dict[str, Any]) -> float:
    low, high = row["speedup_range"]
    return float(high - low)
