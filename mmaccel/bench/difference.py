"""`mmaccel bench difference`: the rows of two results beside each other."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ..comparison import results
from ..errors import SettingError
from ..method import is_number
from .benchmark import Row

# What tells rows of one method apart beside its settings, where a benchmark has it.
SETUP = (
    "table", "batch", "guidance", "budget", "share", "baseline", "audio_seconds",
    "steps", "wrong", "mode", "cache", "beside",
)  # fmt: skip


@dataclass(frozen=True)
class RowPair:
    """A row of the old result and the one of the new result that measured the same; None where there is none.

    Attributes
    ----------
    same_settings
        False where a benchmark tunes the settings itself, as that of video does with thresholds.
    """

    old: Row | None
    new: Row | None
    same_settings: bool = True

    @property
    def row(self) -> Row:
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def label(self) -> str:
        """The method, and what distinguishes it from the other rows."""
        setup = [f"{name} {_short(self.row[name])}" for name in SETUP if self.row.get(name) not in (None, "")]
        return ", ".join([results.called(self.row), *(text for text in setup if not text.startswith("table"))])

    @property
    def speedup_share(self) -> float | None:
        """New speed-up over old; 0 where only the old result has it."""
        if self.old is None or self.new is None or not self.old["speedup"]:
            return None
        return float((self.new["speedup"] or 0.0) / self.old["speedup"])

    @property
    def time_ratio(self) -> float | None:
        """New seconds over old; below 1 is faster."""
        if self.old is None or self.new is None:
            return None
        before, after = results.seconds(self.old)[0], results.seconds(self.new)[0]
        return after / before if before and after else None


@dataclass(frozen=True)
class Difference:
    """Two results, row by row.

    Attributes
    ----------
    pairs
        In the order of the new result; those that only the old one has at the end.
    warnings
        What must be known before the figures are read.
    same_machine
        Whether seconds of the two may be compared; ratios within a run always may.
    """

    pairs: list[RowPair]
    warnings: list[str]
    same_machine: bool

    @property
    def matched(self) -> list[RowPair]:
        return [pair for pair in self.pairs if pair.old is not None and pair.new is not None]

    def fallen(self, share: float) -> list[RowPair]:
        """The rows whose speed-up is less than that share of the old one.

        Raises
        ------
        SettingError
            If `share` is no number above 0, or there is nothing to hold against it.
        """
        if not (is_number(share, 0) and share > 0):
            raise SettingError(f"--fail-below {share}: give a share of the old speed-up above 0, such as 0.9")
        told = [pair for pair in self.matched if pair.speedup_share is not None]
        if not told:
            raise SettingError("no row of the old result has a speed-up and is in the new one: nothing can be checked")
        return [pair for pair in told if (pair.speedup_share or 0.0) < share]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "warnings": self.warnings,
            "same_machine": self.same_machine,
            "rows": [self._entry(pair) for pair in self.pairs],
        }

    def _entry(self, pair: RowPair) -> dict[str, Any]:
        def both(name: str) -> dict[str, Any]:
            return {side: None if row is None else row[name] for side, row in (("old", pair.old), ("new", pair.new))}

        identity = {name: pair.row[name] for name in (*results.IDENTITY, *SETUP) if name in pair.row}
        return {
            **identity,
            "in": "both" if pair in self.matched else "new" if pair.old is None else "old",
            "same_settings": pair.same_settings,
            "time_ratio": pair.time_ratio if self.same_machine else None,
            "speedup": both("speedup"),
            "speedup_share": pair.speedup_share,
            "quality": both("quality"),
            "baseline_quality": both("baseline_quality"),
            "quality_metric": pair.row["quality_metric"],
        }

    def __str__(self) -> str:
        headings = ("method", "time", "speed-up", "of the old", "quality", "")
        parts = [f"warning: {text}" for text in self.warnings]
        for model in dict.fromkeys((pair.row["modality"], pair.row["model"]) for pair in self.pairs):
            group = [pair for pair in self.pairs if (pair.row["modality"], pair.row["model"]) == model]
            lines = [self._line(pair) for pair in group]
            parts.append(f"{model[0]}, {model[1]}\n{results.aligned([headings, *lines])}")
        return "\n\n".join(parts)

    def _line(self, pair: RowPair) -> tuple[str, ...]:
        ratio = pair.time_ratio if self.same_machine else None
        note = "" if pair.same_settings else "other settings"
        if pair.old is None or pair.new is None:
            note = "only in the new" if pair.old is None else "only in the old"
        return (
            pair.label,
            results.cell(ratio, ".2f", "x"),
            self._change(pair, "speedup", "{:.2f}x"),
            results.cell(pair.speedup_share, ".0%"),
            self._change(pair, "quality", "{:.4g}"),
            note,
        )

    def _change(self, pair: RowPair, name: str, form: str) -> str:
        found = [form.format(row[name]) if row and row[name] is not None else "-" for row in (pair.old, pair.new)]
        return "" if found == ["-", "-"] else " to ".join(found)


def difference(old: dict[str, Any], new: dict[str, Any]) -> Difference:
    """Match the rows of two results.

    Rows match if modality, model, method, settings and setup (batch, budget and so on) are equal. What is left is
    matched without the settings, where each side has one such row: some benchmarks tune a setting to a time.

    Raises
    ------
    SettingError
        If the two have no row in common.

    Examples
    --------
    >>> from mmaccel.bench.difference import difference
    >>> from mmaccel.comparison import results
    >>> one = results.row(modality="image", model="m", method="a", settings={}, exact=True, speedup=2.0)
    >>> two = {**one, "speedup": 1.0}
    >>> difference(results.result([one]), results.result([two])).pairs[0].speedup_share
    0.5
    """
    pairs, left = _match(old["rows"], new["rows"], settings=True)
    more, left = _match(*left, settings=False)
    if not pairs and not more:
        raise SettingError("the two results have no row in common: compare results of one benchmark")
    order = {id(row): number for number, row in enumerate(new["rows"])}
    matched = sorted([*pairs, *more], key=lambda pair: order[id(pair.new)])
    alone = [*(RowPair(None, row) for row in left[1]), *(RowPair(row, None) for row in left[0])]
    warnings, same_machine = _warnings(old["header"], new["header"])
    return Difference([*matched, *alone], warnings, same_machine)


def _match(old: list[Row], new: list[Row], settings: bool) -> tuple[list[RowPair], tuple[list[Row], list[Row]]]:
    """Pairs, and the unmatched rows of both; a key that occurs twice on one side is matched only with its settings."""
    before, after = _by_key(old, settings), _by_key(new, settings)
    pairs, used = [], set()
    for key, rows in after.items():
        others = before.get(key, [])
        if settings or len(rows) == len(others) == 1:
            for one, two in zip(others, rows, strict=False):
                pairs.append(RowPair(one, two, settings))
                used |= {id(one), id(two)}
    return pairs, ([r for r in old if id(r) not in used], [r for r in new if id(r) not in used])


def _by_key(rows: list[Row], settings: bool) -> dict[str, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        names = ["modality", "model", "method", *(["settings"] if settings else []), *SETUP]
        found[json.dumps([row.get(name) for name in names], sort_keys=True)].append(row)
    return found


def _warnings(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], bool]:
    def changes(name: str) -> list[str]:
        one, two = old[name], new[name]
        return [f"{key} {one.get(key)} to {two.get(key)}" for key in {**one, **two} if one.get(key) != two.get(key)]

    machine, versions = changes("machine"), changes("versions")
    threads = [f"{old['threads']} to {new['threads']}"] if old["threads"] != new["threads"] else []
    found = [f"other machine ({', '.join(machine)})"] if machine else []
    found += [f"other number of threads ({threads[0]})"] if threads else []
    found = [f"{text}: seconds are not compared, only ratios within each run" for text in found]
    if versions:
        found.append(f"other versions ({', '.join(versions)}): a difference may be theirs")
    return found, not (machine or threads)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
