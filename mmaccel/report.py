"""Report: what the last run did, what it saved and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

UNMEASURED = "not measured: run the target once within `with session.baseline():`"
UNTIMED = "not measured: only a whole call of the session is"  # and not one of the target itself
UNFINISHED = "the run has not come to its end"

SUMMED = ("forwards", "plain_forwards", "keys", "plain_keys", "visual_tokens", "plain_visual_tokens", "tokens")


@dataclass
class Report:
    """Typed statistics of the last run of a session.

    Attributes
    ----------
    methods : list of str
        The methods, as typed.
    exact : bool
        Whether the run kept the distribution of the target's output.
    forwards, plain_forwards : float
        Forward passes of the main model in this run, and in a plain run for the same work; a pass over a
        part of the tokens counts as that part.
    keys, plain_keys : int
        Keys attended to, summed over queries, heads and layers, and in plain attention; 0 where a method does
        not change them.
    visual_tokens, plain_visual_tokens : int
        Tokens of pictures and videos that the language model got, and would get without methods; a mean
        over its layers, or over those of the tower where there is no language model.
    tokens : int
        Tokens of the result, over the whole batch.
    wall_seconds : float
        Measured time of the run; 0 before the first, and of a call of the target itself.
    baseline_seconds : float or None
        Measured time of the same target without methods; None until :meth:`Session.baseline` was used.
    peak_extra_bytes : int
        Bytes that the method itself allocated on top of the model (counted, not sampled).
    engaged : bool
        Whether the method changed the work at all.
    unfinished : bool
        Whether a run of the session began and has not come to its end, as after an error.
    warnings : list of str
        Remarks for the user, such as why a method never engaged.
    details : dict
        Figures of one method only, such as acceptance by depth.
    """

    methods: list[str]
    exact: bool
    forwards: float = 0
    plain_forwards: float = 0
    keys: int = 0
    plain_keys: int = 0
    visual_tokens: int = 0
    plain_visual_tokens: int = 0
    tokens: int = 0
    wall_seconds: float = 0.0
    baseline_seconds: float | None = None
    peak_extra_bytes: int = 0
    engaged: bool = False
    unfinished: bool = False
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Forget the last run; the measured baseline stays."""
        vars(self).update(vars(Report(self.methods, self.exact, baseline_seconds=self.baseline_seconds)))

    @staticmethod
    def total(reports: Sequence[Report]) -> Report:
        """The sum of several runs by the same methods; its warnings are left to who asks."""
        total = Report(reports[0].methods, reports[0].exact)
        for name in (*SUMMED, "wall_seconds"):
            setattr(total, name, sum(getattr(report, name) for report in reports))
        total.peak_extra_bytes = max(report.peak_extra_bytes for report in reports)
        total.engaged = any(report.engaged for report in reports)
        return total

    def warn(self, text: str) -> None:
        """Add a warning, unless it is there."""
        if text not in self.warnings:
            self.warnings.append(text)

    @property
    def work_ratio(self) -> float | None:
        """Forward passes as a share of those in plain decoding; if passes are not counted, the share of keys."""
        if self.plain_forwards:
            return self.forwards / self.plain_forwards
        return self.keys / self.plain_keys if self.plain_keys else None

    @property
    def speedup(self) -> float | None:
        """Baseline time over run time; None before both were measured."""
        if self.baseline_seconds is None or not self.wall_seconds:
            return None
        return self.baseline_seconds / self.wall_seconds

    def to_dict(self) -> dict[str, Any]:
        """All fields as copies, which the next run does not change."""
        values = deepcopy(vars(self))
        return {**values, "work_ratio": self.work_ratio, "speedup": self.speedup}

    def __str__(self) -> str:
        """At most 8 lines of figures, and below them every warning."""
        return "\n".join([*self._figures(), *(f"  warning     {text}" for text in self.told())])

    __repr__ = __str__  # what a notebook shows

    def told(self) -> list[str]:
        """The warnings, or that the method did nothing where no other says so."""
        if self.wall_seconds and not self.engaged and not self.warnings:
            return ["the method did not engage: the run was a plain one"]
        return self.warnings

    def _figures(self) -> list[str]:
        lines = [f"{', '.join(self.methods)}: {'exact' if self.exact else 'lossy'}"]
        if not self.wall_seconds and self.work_ratio is None:
            return [*lines, f"  {UNFINISHED}" if self.unfinished else "  no run yet"]
        if self.plain_forwards:
            fewer = self.plain_forwards / (self.forwards or 1)
            change = f"{fewer:.2f}x fewer" if fewer >= 1 else f"{1 / fewer:.2f}x as many"
            lines.append(f"  passes      {passes(self.forwards)} instead of {passes(self.plain_forwards)}, {change}")
        if self.plain_visual_tokens:
            share = self.visual_tokens / self.plain_visual_tokens
            counts = f"{self.visual_tokens:,} tokens instead of {self.plain_visual_tokens:,}"
            lines.append(f"  visual      {counts}, {share:.1%}, a mean over layers")
        if self.plain_keys:
            share = self.keys / self.plain_keys
            lines.append(f"  keys        {self.keys:,} attended to instead of {self.plain_keys:,}, {share:.1%}")
        return [*lines, *self._times(), f"  memory      {self.peak_extra_bytes / 2**20:.1f} MiB extra, counted"]

    def _times(self) -> list[str]:
        if not self.wall_seconds:
            return [f"  wall time   not measured: {UNFINISHED}" if self.unfinished else f"  wall time   {UNTIMED}"]
        gain = UNMEASURED
        if self.speedup is not None:
            gain = f"{self.speedup:.2f}x against {self.baseline_seconds:.2f} s, both measured"
        return [f"  wall time   {self.wall_seconds:.2f} s measured", f"  speed-up    {gain}"]


def passes(count: float) -> str:
    """A number of forward passes, some of which may be over a part of the tokens.

    Examples
    --------
    >>> passes(19.5), passes(128000)
    ('19.5', '128,000')
    """
    return f"{count:.5g}" if count < 1000 else f"{count:,.0f}"
