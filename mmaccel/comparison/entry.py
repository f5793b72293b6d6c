"""One entry of a comparison or benchmark: its runs, their cost and their output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Self

from ..method import Method
from ..plan import Plan, plan
from . import results
from .trial import BaseTrial, Workload

PLAIN = "plain"
ROUNDED = (
    "it claims to be exact, but gave another output: in {} that can be rounding, as passes over several tokens round"
    " otherwise; load it in float32 to see whether it is"
)
Measured = tuple[list["Sample"], dict[int, dict[str, Any]], dict[int, bool], tuple[int, Any, Any] | None]


@dataclass
class Sample:
    """One run: its seed, seconds and report, and the peak of memory on the accelerator where there is one."""

    seed: int
    seconds: float
    report: dict[str, Any]
    peak_bytes: int | None = None


@dataclass
class Entry:
    """One entry: what runs, and the samples of its runs.

    Attributes
    ----------
    label
        Its name in the table.
    kind
        ``"plain"``, ``"method"``, ``"simple"`` or another word of a benchmark.
    plan
        Of a method.
    fewer
        Steps or frames of the simple alternative.
    setup
        Provides, for the time of a run, what runs in place of the plain target or a session.
    columns
        Further columns of its row in a benchmark.
    memory
        What its sessions learned, for the next run.
    metrics, equal
        By seed: quality metrics, and whether the output equals that of the plain target.
    worst
        The plain output and this entry's output for the worst seed so far.
    """

    label: str
    kind: str
    plan: Plan | None = None
    fewer: int | None = None
    setup: Callable[[Any], AbstractContextManager[Any]] | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    equal: dict[int, bool] = field(default_factory=dict)
    worst: tuple[int, Any, Any] | None = None

    @classmethod
    def of(cls, target: Any, method: Method, label: str = "", kind: str = "method", **columns: Any) -> Self:
        """The entry of a method on a target."""
        return cls(label or str(method), kind, plan(target, method), columns=columns)

    @classmethod
    def using(cls, label: str, thing: Any) -> Self:
        """The entry whose runs are given something of their own in place of the target, such as a function."""
        return cls(label, PLAIN if label == PLAIN else "method", setup=lambda _: nullcontext(thing))

    @property
    def exact(self) -> bool:
        """Whether it promises the plain output or its distribution, as its plan and all its reports say."""
        told = all(sample.report.get("exact", True) for sample in self.samples)
        return self.kind == PLAIN or (self.plan is not None and self.plan.exact and told)

    def judged(self, trial: Workload, seed: int, plain: Any, output: Any) -> None:
        """Note the quality of an output, and keep it if it is the worst."""
        self.metrics[seed], self.equal[seed] = trial.judge(plain, output), trial.equal(plain, output)
        if self.worst_seed(trial) == seed:
            self.worst = seed, plain, output

    def worst_seed(self, trial: Workload) -> int | None:
        """The seed with the worst value of the first metric; the first seed if there is no metric."""
        for metric in trial.metrics[:1]:
            values = {seed: found[metric.key] for seed, found in self.metrics.items() if metric.key in found}
            if values:
                return metric.worst(values)
        return next(iter(self.metrics), None)

    @property
    def measured(self) -> Measured:
        """What was measured, for another process."""
        return self.samples, self.metrics, self.equal, self.worst

    def join(self, trial: Workload, seeds: Sequence[int], parts: Sequence[Measured]) -> None:
        """Take over what several processes measured, whose runs were dealt out one by one."""
        samples, metrics, equal, worst = zip(*parts, strict=True)
        self.samples = [each for turn in zip_longest(*samples) for each in turn if each is not None]
        self.metrics = {seed: found[seed] for seed in seeds for found in metrics if seed in found}
        self.equal = {seed: found[seed] for seed in seeds for found in equal if seed in found}
        seed = self.worst_seed(trial)
        self.worst = next((found for found in worst if found is not None and found[0] == seed), None)

    @property
    def seconds(self) -> list[float]:
        """Seconds of each run."""
        return [sample.seconds for sample in self.samples]

    def ratios(self, plain: Entry) -> list[float]:
        """Plain seconds divided by its own, round by round: both runs of a round see the same state of the machine."""
        return [base / own for base, own in zip(plain.seconds, self.seconds, strict=True)]

    def timing(self, plain: Entry) -> dict[str, Any]:
        """The columns of a row about time."""
        return {
            "wall_seconds": results.median(self.seconds),
            "baseline_seconds": results.median(plain.seconds),
            "speedup": results.median(self.ratios(plain)),
        }

    def work(self) -> dict[str, Any]:
        """The columns of a row that come from its reports."""
        ratios = [found for found in self._told_of("work_ratio") if found is not None]
        return {
            "work_ratio": sum(ratios) / len(ratios) if ratios else None,
            "peak_extra_bytes": max(map(int, self._told_of("peak_extra_bytes")), default=0),
        }

    def _told_of(self, key: str) -> list[Any]:
        return [sample.report[key] for sample in self.samples if key in sample.report]

    def identity(self, unit: str = "") -> dict[str, Any]:
        """The columns of a row that identify the entry; the simple alternative has fewer of a unit."""
        return {"method": self._name(unit), "settings": self._settings(unit), "exact": self.exact}

    @property
    def idle(self) -> str | None:
        """Why it did nothing, None if it did."""
        if self.kind != "method":
            return None
        same = all(self.equal.values())
        if not any(sample.report["engaged"] for sample in self.samples):
            ratios = [sample.report["work_ratio"] for sample in self.samples]
            if same or all(ratio is not None and ratio >= 1 for ratio in ratios):
                return next(iter(self.warnings), "its report says that it never engaged")
        elif same and all(sample.report["work_ratio"] == 1 for sample in self.samples):
            return "as much work as the plain run, and the same output"
        return None

    @property
    def warnings(self) -> list[str]:
        """Warnings of the reports of its runs, each once."""
        return list(dict.fromkeys(text for sample in self.samples for text in sample.report.get("warnings", ())))

    def row(self, trial: BaseTrial, model: str, plain: Entry) -> dict[str, Any]:
        """A row of :mod:`mmaccel.comparison.results`."""
        seconds, ratios = self.seconds, self.ratios(plain)
        row = results.row(
            modality=trial.adapter.modality,
            model=model,
            **self.identity(trial.unit),
            seeds=list(self.metrics),
            **self.timing(plain),
            **self.work(),
            visual_share=self._visual_share(trial),
            label=self.label,
            kind=self.kind,
            wall_range=[min(seconds), max(seconds)],
            speedup_range=[min(ratios), max(ratios)],
            peak_bytes=max((each.peak_bytes for each in self.samples if each.peak_bytes is not None), default=None),
            equal=all(self.equal.values()),
            same_distribution=self.exact and trial.draws,
            idle=self.idle,
            warnings=self._told(trial),
            samples=[
                {"seed": each.seed, "seconds": each.seconds, "ratio": ratio}
                for each, ratio in zip(self.samples, ratios, strict=True)
            ],
        )
        return {**row, **self._quality(trial, plain)}

    def _quality(self, trial: BaseTrial, plain: Entry) -> dict[str, Any]:
        first, worst = trial.metrics[0], self.worst_seed(trial)
        means = {metric.key: _mean(self.metrics, metric.key) for metric in trial.metrics}
        return {
            "quality_metric": first.meaning,
            "quality": means[first.key],
            "baseline_quality": _mean(plain.metrics, first.key),
            "worst_seed": worst,
            "quality_worst": None if worst is None else self.metrics[worst].get(first.key),
            "metrics": means,
            "metrics_by_seed": self.metrics,
        }

    def _visual_share(self, trial: BaseTrial) -> float | None:
        """Share of the visual tokens that the language model got, a mean over its layers; None without any."""
        if self.fewer is not None:
            return trial.visual_share(self.fewer)
        counts = [
            (sample.report.get("visual_tokens", 0), sample.report.get("plain_visual_tokens", 0))
            for sample in self.samples
        ]
        shares = [kept / whole for kept, whole in counts if whole]
        return sum(shares) / len(shares) if shares else None

    def _name(self, unit: str) -> str:
        if self.plan is None:
            return self.kind if self.fewer is None else f"fewer {unit}"
        return " + ".join(method.name for method in self.plan.methods)

    def _settings(self, unit: str) -> dict[str, Any]:
        if self.plan is None:
            return {} if self.fewer is None else {unit: self.fewer}
        if len(self.plan.methods) == 1:
            return self.plan.methods[0].settings()
        return {method.name: method.settings() for method in self.plan.methods}

    def _told(self, trial: BaseTrial) -> list[str]:
        """Warnings of the reports, and one more if a promise of exactness was broken, or rounding may be at work."""
        if not self.exact or trial.draws or all(self.equal.values()):
            return self.warnings
        rough = _rough_type(trial.adapter.parts())
        return [*self.warnings, ROUNDED.format(rough) if rough else "it claims to be exact, but gave another output"]


def _rough_type(parts: list[Any]) -> str:
    """A type of numbers below float32 that a part of a target has; empty where all are finer."""
    import torch

    modules = (part for part in parts if isinstance(part, torch.nn.Module))
    types = (weights.dtype for module in modules for weights in module.parameters())
    rough = (str(found) for found in types if found.is_floating_point and found.itemsize < 4)
    return next(rough, "").removeprefix("torch.")


def _mean(found: dict[int, dict[str, float]], key: str) -> float | None:
    values = [figures[key] for figures in found.values() if not math.isnan(figures.get(key, math.nan))]
    return sum(values) / len(values) if values else None
