"""Who wins a comparison and by how much, in words: every benchmark's sentences about its rows are made here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..tuning.curve import NEAR

Row = dict[str, Any]
Pair = tuple[Row, Row]  # ours and another


@dataclass(frozen=True)
class Figure:
    """A figure that rows are compared by.

    Attributes
    ----------
    name
        What it is called in a sentence.
    value
        That of a row; None where it was not measured.
    unit, digits
        How a difference is written.
    scale
        What a difference is multiplied by, such as 100 for points.
    tie
        The difference up to which nobody wins.
    higher_is_better
        Of the figure.
    is_ratio
        Whether ours is divided by the other, as speeds are, instead of the other taken away from it.
    """

    name: str
    value: Callable[[Row], float | None]
    unit: str = ""
    digits: int = 1
    scale: float = 1.0
    tie: float = 0.1
    higher_is_better: bool = True
    is_ratio: bool = False

    def gain(self, ours: Row, other: Row) -> float:
        """What is between two rows that have the figure."""
        mine, theirs = self.value(ours), self.value(other)
        assert mine is not None and theirs is not None
        return mine / theirs if self.is_ratio else self.scale * (mine - theirs)

    def lead(self, gain: float) -> float:
        """How far ours is ahead: above the tie it wins, below minus the tie the other does."""
        return (gain - self.is_ratio) * (1 if self.higher_is_better else -1)

    def best(self, rows: Iterable[Row]) -> Row | None:
        """The best of the rows that have the figure, of equals the fastest."""
        known = [(value, row) for row in rows if (value := self.value(row)) is not None]
        best = max(known, key=lambda each: (self.lead(each[0]), each[1]["speedup"] or 0.0), default=None)
        return None if best is None else best[1]

    def number(self, gain: float) -> str:
        """A gain as it is written."""
        return f"{gain:.2f}x" if self.is_ratio else f"{gain:+.{self.digits}f}{self.unit}"

    def told(self, gain: float, other: str) -> str:
        """The same beside what it is compared with."""
        return f"{self.number(gain)} {'as fast as' if self.is_ratio else 'to'} {other}"


def speed(name: str, column: str = "speedup") -> Figure:
    """A column that says how much faster than the plain model a row is."""
    return Figure(name, lambda row: row.get(column), tie=1 - NEAR, is_ratio=True)


def who_wins(figure: Figure, ours: Row, others: Iterable[Sequence[Row]], named: Callable[[Row], str]) -> str:
    """A row of ours beside the best of each group of others: who wins, and how far ours is from each of them.

    Empty where nothing can be compared.
    """
    best = [row for row in map(figure.best, others) if row is not None]
    if figure.value(ours) is None or not best:
        return ""
    found = [(figure.gain(ours, row), row) for row in best]
    least, other = min(found, key=lambda each: figure.lead(each[0]))
    lead = figure.lead(least)
    winner = named(other) if lead < -figure.tie else named(ours) if lead > figure.tie else "nobody"
    called = "ours" if winner == named(ours) else f"ours, {named(ours)},"
    *first, last = [figure.told(gain, named(row)) for gain, row in found]
    gains = f"{', '.join(first)} and {last}" if first else last
    return f"- {figure.name[0].upper()}{figure.name[1:]}: {winner} wins; {called} is {gains}."


def ahead(figure: Figure, pairs: Sequence[Pair], case: Callable[[Row], str]) -> str:
    """In how many cases ours wins and loses a figure, how far it is ahead on the mean, and where least.

    Empty where nothing can be compared. Ratios have a geometric mean.
    """
    known = [(one, other) for one, other in pairs if figure.value(one) is not None and figure.value(other) is not None]
    if not known:
        return ""
    found = [(figure.gain(one, other), one) for one, other in known]
    leads = [figure.lead(gain) for gain, _ in found]
    wins, losses = sum(lead > figure.tie for lead in leads), sum(lead < -figure.tie for lead in leads)
    mean = (statistics.geometric_mean if figure.is_ratio else statistics.fmean)(gain for gain, _ in found)
    least, worst = min(found, key=lambda each: figure.lead(each[0]))
    behind = f" and behind in {losses}" if losses else ""
    told = f", at worst {figure.number(least)} with {case(worst)}" if len(found) > 1 else ""
    return f"{figure.name} ahead in {wins or 'none'}{behind} of {len(found)} ({figure.number(mean)}{told})"
