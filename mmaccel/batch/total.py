"""What all items together took and saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from ..report import UNMEASURED, Report

WARNINGS = 3  # that are told


def total(records: Collection[dict[str, Any]]) -> Report:
    """The sum of the reports of finished items, of which at least one has a report."""
    reports = [Report(**record["report"]) for record in records if record["report"]]
    found = Report.total(reports)
    counts = Counter(warning for report in reports for warning in report.warnings)
    found.warnings = [f"{count} x {text}" for text, count in counts.most_common(WARNINGS)]
    return found


def told(records: Collection[dict[str, Any]], baseline: int = 0) -> str:
    """The sum in lines; a speed-up is that of items made both ways, as `baseline` of them were to be."""
    if not any(record["report"] for record in records):
        seconds = sum(record["seconds"] for record in records)
        return f"{seconds:.2f} s without methods, {seconds / len(records):.2f} s an item"
    both = [record for record in records if record["plain_seconds"]]
    said = "not measured: say --baseline 5"
    if baseline:
        said = "not measured: no item was made both ways now (what was finished before is not made again)"
    if both:
        plain, fast = (sum(record[name] for record in both) for name in ("plain_seconds", "seconds"))
        said = f"{plain / fast:.2f}x against {plain:.2f} s, both measured (items made both ways: {len(both)})"
    return str(total(records)).replace(UNMEASURED, said)
