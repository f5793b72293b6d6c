"""What a benchmark is: its rows, its page, and its section of docs/benchmarks/index.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..comparison.quality_plot import Axes, Series
from ..comparison.results import called, place, seconds, where
from .pages import page
from .winners import Figure

Row = dict[str, Any]
Group = list[Row]
Parts = Callable[[bool], Mapping[str, Callable[[], Iterable[Row]]]]


def taken(row: Row) -> str:
    """The time of a row, for rows that were measured together."""
    time = seconds(row)[0]
    if time is None:
        return ""
    if row.get("real_time_factor") is not None:
        return f"{row['real_time_factor']:.2f} s a second of audio"
    each = " a frame" if row.get("table") == "codec" else ""
    return (f"{1000 * time:.3g} ms" if time < 0.1 else f"{time:.2f} s") + each


def taken_share(row: Row) -> str:
    """The share of the plain run's time beside it, for rows that were measured in different hours."""
    return f"{row['wall_seconds'] / row['baseline_seconds']:.0%}"


@dataclass(frozen=True)
class Section:
    """How the rows of one benchmark are shown in the index.

    Attributes
    ----------
    groups
        Splits the rows into tables by heading; rows it leaves out are on the benchmark's own page.
    simple
        What the simple alternative is, or why there is none.
    plot
        What the picture of quality against time shows; empty where there is none.
    quality
        Name of its axis, with the unit.
    higher_is_better
        Of the metric of quality.
    form
        Format of quality.
    is_mixed
        Whether rows of a table measure different things, so that none makes another pointless.
    names_models
        Whether the models of the rows are told.
    name
        What a row is called in a table.
    worst
        What is said of the worst sample of a row where it has no `psnr_worst` or `quality_worst`.
    series
        What the line is called that a row lies on in the picture.
    draws_exact
        Whether exact rows that were judged are drawn.
    one_group
        Whether the picture has the first table only.
    picture
        Lines and axes of a picture of its own kind, of the first table.
    figures
        What quality is compared by: the mean first, then the worst.
    versus
        The group of a row that is not ours, whose best is set beside ours; empty for ours. By default what others
        are there and what anyone can do are a group each.
    said
        What is said above a table of its rows, who wins and by how much, where
        :func:`mmaccel.bench.findings.of_table` does not say it.
    more
        What is said of all rows, below the tables.
    time
        What a row took.
    """

    groups: Callable[[Group], dict[str, Group]]
    simple: str
    plot: str = ""
    quality: str = ""
    higher_is_better: bool = True
    form: str = ".3g"
    is_mixed: bool = False
    names_models: bool = True
    name: Callable[[Row], str] = called
    worst: Callable[[Row], str] = lambda row: ""
    series: Callable[[Row], str] = lambda row: str(row["method"]).split(".")[-1]
    draws_exact: bool = True
    one_group: bool = False
    picture: Callable[[Group], tuple[list[Series], Axes]] | None = None
    figures: tuple[Figure, ...] = ()
    versus: Callable[[Row], str] | None = None
    said: Callable[[Group], str] | None = None
    more: Callable[[Group], str] = lambda rows: ""
    time: Callable[[Row], str] = taken

    def has_plot(self, rows: Group) -> bool:
        """Whether rows have quality figures to draw; short runs of a benchmark can leave them out."""
        return bool(self.plot) and any(row["quality"] is not None for row in rows)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: what it measures, and the texts about it.

    Attributes
    ----------
    name
        As in `mmaccel bench NAME`, and of its files.
    parts
        Measures its rows part by part, by name, so that a benchmark that was stopped goes on where it was; with True at
        full length, as in docs/benchmarks. :func:`in_one` for one that begins again.
    section
        How its rows stand in the index.
    intro
        What was measured and how to read it; `{json}` and `{png}` stand for its files, `{place}` for the machine, and
        `{plot}` for the picture of quality against time, where it has no `plot` of its own.
    tables
        The body of each section of its page, by heading.
    limits
        What limits each method.
    facts
        Further figures of the rows by the names that stand for them in `intro` and `limits`.
    plot
        Draws the rows into a file beside the page; by default quality against time, as in the index.
    threads
        CPU threads that its figures are of.
    """

    name: str
    title: str
    parts: Parts
    section: Section
    intro: str
    tables: Callable[[list[Row]], Mapping[str, str]]
    limits: str
    facts: Callable[[list[Row]], dict[str, Any]] = lambda rows: {}
    plot: Callable[[list[Row], Path], Any] | None = None
    threads: int = 1

    def page(self, result: dict[str, Any], json: str, png: str) -> str:
        """The Markdown page of a result, with links to its raw rows and its plot."""
        rows = result["rows"]
        plot = f"![{self.section.plot}]({png})" if self.section.has_plot(rows) else ""
        names = {"json": json, "png": png, "plot": plot, "place": place(where(result["header"])), **self.facts(rows)}
        sections = {**self.tables(rows), "What limits each": self.limits.format(**names).strip()}
        return page(result, self.title, self.intro.format(**names), sections)

    def write_page(self, result: dict[str, Any], path: Path) -> None:
        """Write the page, and its plot beside it."""
        from .plots import plot

        path.parent.mkdir(parents=True, exist_ok=True)
        picture = path.with_suffix(".png")
        if self.plot is not None:
            self.plot(result["rows"], picture)
        elif self.section.has_plot(result["rows"]):
            plot(self, result, picture)
        path.write_text(self.page(result, path.with_suffix(".json").name, picture.name), encoding="utf-8")


def in_one(rows: Callable[[bool], Iterator[Row]]) -> Parts:
    """All rows of a benchmark as one part."""
    return lambda full: {"all": functools.partial(rows, full)}


def by(column: str, form: str, rows: Group) -> dict[str, Group]:
    """Rows grouped by the values of a column, in their order, under headings of a format."""
    values = dict.fromkeys(row[column] for row in rows)
    return {form.format(value): [row for row in rows if row[column] == value] for value in values}
