"""The tokens that a run computed in each step, as numbers and as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmaccel.comparison.quality_plot import require_matplotlib
from mmaccel.errors import SettingError, UsageError
from mmaccel.session import Session

MOST_FRAMES = 12  # in a heat map


class Trace:
    """The tokens that each step of a run computed.

    Parameters
    ----------
    levels
        Noise level of each step.

    Examples
    --------
    >>> trace = Trace([1.0, 0.5])
    >>> trace.add(1.0, tokens=4)
    >>> trace.add(torch.tensor([1]), tokens=4)
    >>> trace.shares(), trace.counts().tolist()
    ([1.0, 0.25], [1, 2, 1, 1])
    """

    def __init__(self, levels: Sequence[float]) -> None:
        self.levels = list(levels)
        self.tokens = 0
        self.grid: tuple[int, int, int] | None = None
        self._steps: list[float | torch.Tensor] = []

    def add(self, active: float | torch.Tensor, tokens: int) -> None:
        """Note a step that computed all `tokens` (1), none (0), or those at the indices `active`."""
        self.tokens = tokens
        self._steps.append(active if isinstance(active, int | float) else active.cpu())

    def shares(self) -> list[float]:
        """Share of the tokens that each step computed."""
        return [float(s) if isinstance(s, int | float) else round(len(s) / self.tokens, 4) for s in self._steps]

    def mask(self) -> torch.Tensor:
        """Which tokens each step computed, bool `[steps, S]`."""
        rows = torch.zeros(len(self._steps), self.tokens, dtype=torch.bool)
        for row, active in zip(rows, self._steps, strict=True):
            if isinstance(active, torch.Tensor):
                row[active] = True
            else:
                row[:] = bool(active)
        return rows

    def counts(self) -> torch.Tensor:
        """In how many steps each token was computed, `[S]`."""
        return self.mask().sum(0)

    def heat_map(self) -> torch.Tensor:
        """The counts `[frames, height, width]`; where the grid is unknown, one nearly square frame."""
        grid = self.grid
        if grid is None or math.prod(grid) != self.tokens:
            height = max(d for d in range(1, math.isqrt(self.tokens) + 1) if self.tokens % d == 0)
            grid = (1, height, self.tokens // height)
        return self.counts().view(grid)

    def save(self, path: Path | str) -> None:
        """Draw a chart of the steps, above a heat map of the tokens where some were computed more often than others.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        require_matplotlib()
        from matplotlib import cm
        from matplotlib.figure import Figure

        frames = self.heat_map()
        low, high = int(frames.min()), int(frames.max())
        if low == high:
            figure = Figure(figsize=(10, 3), layout="constrained")
            self._draw_steps(figure.add_subplot())
            figure.savefig(path, dpi=110)
            return
        chosen = torch.linspace(0, len(frames) - 1, min(len(frames), MOST_FRAMES)).round().long()
        frames = frames[chosen]
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        places = figure.add_gridspec(2, len(frames), height_ratios=(3, 2))
        self._draw_steps(figure.add_subplot(places[0, :]))
        maps = [figure.add_subplot(places[1, i]) for i in range(len(frames))]
        for number, axes, frame in zip(chosen.tolist(), maps, frames, strict=True):
            axes.imshow(frame, vmin=low, vmax=high, cmap="magma")
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"frame {number}", fontsize=8)
        scale = cm.ScalarMappable(cmap="magma")
        scale.set_clim(low, high)
        figure.colorbar(scale, ax=maps, shrink=0.8, label="steps computed")
        figure.savefig(path, dpi=110)

    def _draw_steps(self, chart: Any) -> None:
        """The share of tokens that each step computed, and its noise level."""
        shares = self.shares()
        colours = ["#26547c" if share == 1 else "#e07a5f" for share in shares]
        chart.bar(range(len(shares)), shares, color=colours, width=0.8)
        chart.set(xlabel="step", ylabel="share of tokens computed", ylim=(0, 1.02), xlim=(-0.6, len(shares) - 0.4))
        chart.set_title(f"{round(sum(shares), 1):g} of {len(shares)} steps computed", loc="left", fontsize=11)
        chart.spines[["top", "right"]].set_visible(False)
        levels = chart.twinx()
        levels.plot(range(len(shares)), self.levels[: len(shares)], color="#999999", linewidth=1)
        levels.set(ylabel="noise level", ylim=(0, 1.02))
        levels.spines[["top"]].set_visible(False)


def check_traced(session: Session, option: str) -> None:
    """Raise a `SettingError` that names the option if no method of a session notes what it computes.

    A `MissingExtraError` if there is nothing to draw it with.
    """
    if not any(getattr(method, "traces", False) and not method.exact for method in session.plan.methods):
        methods = ", ".join(method.name for method in session.plan.methods) or "the plain pipeline"
        raise SettingError(f"{option}: {methods} keeps no trace: use video.HeterogeneousSteps, or leave it out")
    require_matplotlib()


def trace_of(session: Session) -> Trace:
    """The trace of a session's last run.

    Raises
    ------
    SettingError
        If there was no run, or its methods keep no trace.
    UsageError
        If it is no session.
    """
    if not hasattr(session, "memory"):
        raise UsageError(f"{type(session).__name__} is no session: give what accelerate() returned")
    trace = session.memory.get("trace")
    if not isinstance(trace, Trace):
        raise SettingError(f"{session} keeps no trace, or has not run yet: run it with video.HeterogeneousSteps first")
    return trace
