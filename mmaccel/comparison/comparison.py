"""The result of `compare`: rows, the worst pair of each entry, a table, and files: a page, a picture, or the rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..errors import SettingError
from ..files.foreign_json import UNPRINTABLE
from ..files.output import replacing
from . import results
from .entry import PLAIN, Entry
from .trial import BaseTrial, Metric, Shown

FORMATS = (".html", ".png", ".json")
LONGEST = 160  # characters of an argument that a page shows


@dataclass(frozen=True)
class Pair:
    """The outputs of the plain target and of an entry with one seed, in visible form.

    Attributes
    ----------
    label
        The entry's.
    seed
        Its worst.
    figures
        Metrics of this seed.
    """

    label: str
    seed: int
    plain: Shown
    other: Shown
    figures: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """Rows of all entries, the plain target first, and the pairs to show.

    Attributes
    ----------
    result
        Header and rows, as in `mmaccel bench --json`.
    pairs
        One pair for each entry except the plain target.
    metrics
        The quality metrics of the rows.
    """

    result: dict[str, Any]
    pairs: list[Pair]
    metrics: tuple[Metric, ...]

    @classmethod
    def of(cls, trial: BaseTrial, entries: list[Entry], seeds: list[int], no_simple: str, processes: int = 1) -> Self:
        """Gather the measurements, which so many processes shared."""
        model = trial.model or _name(trial.target)
        result = results.result(entry.row(trial, model, entries[0]) for entry in entries)
        call = {name: describe(value) for name, value in trial.inputs.items()}
        result["header"].update(
            target=type(trial.target).__name__, model=model, call=call, seeds=seeds, no_simple=no_simple
        )
        if processes > 1:
            result["header"]["processes"] = processes
        measured = {key for row in result["rows"] for key, value in row["metrics"].items() if value is not None}
        metrics = tuple(metric for metric in trial.metrics if metric.key in measured)
        if trial.about:
            result["header"]["about"] = trial.about
        if trial.seedless and len(seeds) > 1:
            result["header"]["seedless"] = trial.seedless
        return cls(result, [_pair(trial, entry) for entry in entries[1:]], metrics)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each entry, as :func:`mmaccel.comparison.results.row` makes them."""
        return list(self.result["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Header and rows, ready for JSON."""
        return self.result

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and a line of cells for each entry."""
        more = [metric.title for metric in self.metrics]
        visual = ["visual tokens"] if self._shortens else []
        headings = ["", "seconds", "speed-up", *visual, more[0], "worst", *more[1:], "output", "extra memory"]
        return headings, [self._line(row) for row in self.rows]

    @property
    def _shortens(self) -> bool:
        """Whether a method leaves out visual tokens."""
        return any(row["kind"] == "method" and row.get("visual_share") is not None for row in self.rows)

    def _line(self, row: dict[str, Any]) -> list[str]:
        first, *others = self.metrics
        low, high = row["speedup_range"]
        speed = f"{row['speedup']:.2f}x ({low:.2f} to {high:.2f})" if row["kind"] != PLAIN else ""
        figures = [(row["quality"], first), (row["quality_worst"], first)]
        figures += [(row["metrics"][metric.key], metric) for metric in others]
        # compared with itself the plain target is perfect, which says nothing
        perfect = [row["kind"] == PLAIN and (m.higher_is_better or m.relative) for _, m in figures]
        quality = [
            "" if is_perfect else results.cell(value, metric.form)
            for is_perfect, (value, metric) in zip(perfect, figures, strict=True)
        ]
        seconds = "{:.3g} ({:.3g} to {:.3g})".format(row["wall_seconds"], *row["wall_range"])
        # a mean over the layers, which makes methods comparable that drop tokens at different depths
        visual = [results.cell(row["visual_share"], ".1%")] if self._shortens else []
        return [row["label"], seconds, speed, *visual, *quality, _output(row), _memory(row)]

    def notes(self) -> list[str]:
        """Remarks that belong beside the table."""
        header = self.result["header"]
        shared = header.get("processes")
        idle = [(row["label"], row["idle"]) for row in self.rows if row["idle"]]
        found = [header["about"]] if "about" in header else []
        found += [f"{shared} processes shared the runs: on one machine each is slower for the others"] if shared else []
        found += [f"{label} did nothing: {reason.removeprefix(label + ': ')}" for label, reason in idle]
        found += [f"{row['label']} is {told}" for row in self.rows if (told := _pace(row))]
        found += [f"{row['label']}: {text}" for row in self.rows for text in row["warnings"] if text != row["idle"]]
        found += [f"no simple alternative: {header['no_simple']}"] if header["no_simple"] else []
        return [*found, *([f"all seeds gave one output: {header['seedless']}"] if "seedless" in header else [])]

    def __str__(self) -> str:
        headings, lines = self.table()
        return "\n".join([results.aligned([headings, *lines]), *self.notes()])

    __repr__ = __str__  # what a notebook shows

    def save(self, path: str | Path) -> None:
        """Write a self-contained page (.html), a picture (.png) or the rows (.json).

        Raises
        ------
        SettingError
            If the name has another ending.
        OSError
            If the file cannot be written; the error says why.
        """
        path = Path(path)
        check_format(path)
        with replacing(path) as temporary:
            if path.suffix.lower() == ".png":
                from .picture import draw

                draw(self).save(temporary)
            else:
                temporary.write_text(self._text(path), encoding="utf-8")

    def _text(self, path: Path) -> str:
        if path.suffix.lower() == ".json":
            return json.dumps(self.to_dict(), indent=1) + "\n"
        from .page import page

        return page(self)


def check_format(path: str | Path) -> None:
    """Raise a `SettingError` for an unknown file ending, before any work is done."""
    if Path(path).suffix.lower() not in FORMATS:
        raise SettingError(f"cannot write a comparison as {Path(path).name!r}: end the name with {', '.join(FORMATS)}")


def describe(value: Any) -> Any:
    """An argument in short: numbers and short words as they are, tensors and pictures by kind and size."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        value = " ".join(UNPRINTABLE.sub(" ", value).split())  # files that hold others are not read again
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}... ({len(value)} characters)"
    if hasattr(value, "shape"):
        return f"{type(value).__name__} {list(value.shape)}"
    if isinstance(value, list | tuple):
        return [describe(item) for item in value] if len(value) <= 4 else f"{len(value)} x {describe(value[0])}"
    return type(value).__name__


def _name(target: Any) -> str:
    """The hub id of a target, or the name of its folder, or its class."""
    name = str(getattr(target, "name_or_path", "") or "")
    if Path(name).is_absolute() or Path(name).is_dir():
        name = Path(name).name
    return name or type(target).__name__


def _pair(trial: BaseTrial, entry: Entry) -> Pair:
    assert entry.worst is not None
    seed, plain, other = entry.worst
    return Pair(entry.label, seed, trial.show(plain), trial.show(other), entry.metrics[seed])


def _pace(row: dict[str, Any]) -> str:
    """A remark on a method's time: that it was slower, or that its rounds contradict each other."""
    low, high = row["speedup_range"]
    if (
        row["kind"] != "method" or low >= 1 or (row["idle"] and high >= 1)
    ):  # an idle method differs from the plain run by chance only
        return ""
    pace = "slower than the plain run" if row["speedup"] < 1 else "faster than the plain run"
    return pace if high < 1 else f"{pace}, though not in every round"


def _output(row: dict[str, Any]) -> str:
    if row["kind"] == PLAIN:
        return ""
    if row["equal"]:
        return "equal"
    return "same distribution" if row["same_distribution"] else "differs"


def _memory(row: dict[str, Any]) -> str:
    """Memory counted by the method; on an accelerator the measured peak of the whole run."""
    if row["peak_bytes"] is not None:
        return f"{_size(row['peak_bytes'])} in all"
    return _size(row["peak_extra_bytes"]) if row["kind"] == "method" else ""


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
