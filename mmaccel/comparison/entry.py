"""One line of a comparison: who runs, what it took and what it gave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ..bench import result as bench
from ..plan import Plan
from .trial import BaseTrial


@dataclass
class Take:
    """One run: its seed, seconds and report, and the peak of memory on the accelerator where there is one."""

    seed: int
    seconds: float
    report: dict[str, Any]
    peak_bytes: int | None = None


@dataclass
class Contestant:
    """Who runs.

    Attributes
    ----------
    label
        As in the table.
    kind
        ``"plain"``, ``"method"`` or ``"simple"``.
    plan
        Of a method.
    fewer
        Steps or frames of the simple alternative.
    memory
        What its sessions learned, for the next run.
    metrics, equal
        By seed: the figures of quality, and whether the output is that of the plain target.
    worst
        The plain output and its own, of the worst seed so far.
    """

    label: str
    kind: str
    plan: Plan | None = None
    fewer: int | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    takes: list[Take] = field(default_factory=list)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    equal: dict[int, bool] = field(default_factory=dict)
    worst: tuple[int, Any, Any] | None = None

    @property
    def exact(self) -> bool:
        """Whether it promises the plain output, or its law."""
        return self.kind == "plain" or (self.plan is not None and self.plan.exact)

    def judged(self, trial: BaseTrial, seed: int, plain: Any, output: Any) -> None:
        """Note the quality of an output, and keep it if it is the worst."""
        self.metrics[seed], self.equal[seed] = trial.judge(plain, output), trial.equal(plain, output)
        if self.worst_seed(trial) == seed:
            self.worst = seed, plain, output

    def worst_seed(self, trial: BaseTrial) -> int | None:
        """The seed with the worst of the first metric, the first one where there is no metric."""
        metric = trial.metrics[0]
        values = {seed: found[metric.key] for seed, found in self.metrics.items() if metric.key in found}
        return metric.worst(values) if values else next(iter(self.metrics), None)

    @property
    def idle(self) -> str | None:
        """Why it did nothing, None if it did."""
        if self.kind != "method":
            return None
        same = all(self.equal.values())
        if not any(take.report["engaged"] for take in self.takes):
            ratios = [take.report["work_ratio"] for take in self.takes]
            if same or all(ratio is not None and ratio >= 1 for ratio in ratios):
                return next(iter(self.warnings), "its report says that it never engaged")
        elif same and all(take.report["work_ratio"] == 1 for take in self.takes):
            return "as much work as the plain run, and the same output"
        return None

    @property
    def warnings(self) -> list[str]:
        """What the reports of its runs warn of, each once."""
        return list(dict.fromkeys(text for take in self.takes for text in take.report.get("warnings", ())))

    def row(self, trial: BaseTrial, model: str, plain: Contestant) -> dict[str, Any]:
        """A row of :mod:`mmaccel.bench.result`."""
        seconds = [take.seconds for take in self.takes]
        ratios = [base.seconds / take.seconds for base, take in zip(plain.takes, self.takes, strict=True)]
        work = [take.report["work_ratio"] for take in self.takes if take.report.get("work_ratio") is not None]
        row = bench.row(
            modality=trial.adapter.modality,
            model=model,
            method=self._name(trial),
            settings=self._settings(trial),
            exact=self.exact,
            seeds=list(self.metrics),
            wall_seconds=bench.median(seconds),
            baseline_seconds=bench.median(take.seconds for take in plain.takes),
            speedup=bench.median(ratios),
            work_ratio=sum(work) / len(work) if work else None,
            visual_share=self._visual_share(trial),
            peak_extra_bytes=max(int(take.report.get("peak_extra_bytes", 0)) for take in self.takes),
            label=self.label,
            kind=self.kind,
            wall_range=[min(seconds), max(seconds)],
            speedup_range=[min(ratios), max(ratios)],
            peak_bytes=max((take.peak_bytes for take in self.takes if take.peak_bytes is not None), default=None),
            equal=all(self.equal.values()),
            same_law=self.exact and trial.draws,
            idle=self.idle,
            warnings=self._told(trial),
            takes=[{"seed": t.seed, "seconds": t.seconds, "ratio": r} for t, r in zip(self.takes, ratios, strict=True)],
        )
        return {**row, **self._quality(trial, plain)}

    def _quality(self, trial: BaseTrial, plain: Contestant) -> dict[str, Any]:
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
        """Visual tokens that the language model got, a share of all and a mean over its layers; None without any."""
        if self.fewer is not None:
            return trial.visual_share(self.fewer)
        counts = [
            (take.report.get("visual_tokens", 0), take.report.get("plain_visual_tokens", 0)) for take in self.takes
        ]
        shares = [kept / whole for kept, whole in counts if whole]
        return sum(shares) / len(shares) if shares else None

    def _name(self, trial: BaseTrial) -> str:
        if self.plan is None:
            return self.kind if self.fewer is None else f"fewer {trial.unit}"
        return " + ".join(method.name for method in self.plan.methods)

    def _settings(self, trial: BaseTrial) -> dict[str, Any]:
        if self.plan is None:
            return {} if self.fewer is None else {trial.unit: self.fewer}
        if len(self.plan.methods) == 1:
            return self.plan.methods[0].settings()
        return {method.name: method.settings() for method in self.plan.methods}

    def _told(self, trial: BaseTrial) -> list[str]:
        """Warnings of the reports, and one of our own where a promise was not kept."""
        broken = self.exact and not trial.draws and not all(self.equal.values())
        return [*self.warnings, *(["it is said to be exact, and yet gave another output"] if broken else [])]


def _mean(found: dict[int, dict[str, float]], key: str) -> float | None:
    values = [figures[key] for figures in found.values() if not math.isnan(figures.get(key, math.nan))]
    return sum(values) / len(values) if values else None
