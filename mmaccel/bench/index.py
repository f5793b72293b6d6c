"""docs/benchmarks/index.md: what all benchmarks found, in one page made from their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import SettingError, WeightsError
from ..files.output import replacing
from ..tuning.curve import NEAR
from . import result as bench
from .sections import SECTIONS, Group, Row, Section

Found = list[tuple[Row, str]]  # rows with what they are: "method", "simple", "other"

INTRO = """# Benchmarks

Made by `mmaccel bench index` from the JSON files beside this page; no figure is typed. Each section shows the rows that
save time and that no other row of ours beats in both time and quality (3 % of time count as none), the simple
alternative that anyone can have without a method, and where methods of other papers or packages stand beside ours, the
best of them. All rows, also those that lost, are on the linked pages.

*speed-up* is against the plain run of the same model in the same alternation. *exact* keeps the plain output, or its
law. The plots have time to the left and quality upwards: the top left corner is where one wants to be.
`mmaccel bench all --page FOLDER` measures everything on your machine, `mmaccel bench difference OLD.json NEW.json`
compares two results, and `mmaccel tune` does the same for one method on your own model and input."""


def write(folder: Path) -> list[Path]:
    """Write `index.md` and the plots beside the results in a folder; returns what was written.

    Raises
    ------
    SettingError
        If the folder has no result.
    WeightsError
        If a file of it is damaged.
    """
    results = read(folder)
    from .plots import plot

    written = []
    for section in SECTIONS:
        if section.kind in results and has_plot(section, results[section.kind]):
            written.append(folder / f"{section.kind}_quality.png")
            with replacing(written[-1]) as temporary:
                plot(section, results[section.kind], temporary)
    with replacing(folder / "index.md") as temporary:
        temporary.write_text(page(results), encoding="utf-8")
    return [*written, folder / "index.md"]


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in a folder by the name of their benchmark."""
    sections = [section for section in SECTIONS if (folder / f"{section.kind}.json").is_file()]
    if not sections:
        raise SettingError(f"{folder} has no result: measure first with `mmaccel bench all --page {folder}`")
    return {section.kind: _read(section, folder) for section in sections}


def _read(section: Section, folder: Path) -> dict[str, Any]:
    path = folder / f"{section.kind}.json"
    found = bench.load(path)
    try:
        section.groups(found["rows"])
    except (LookupError, TypeError) as error:
        raise WeightsError(
            f"{path} holds no rows of this benchmark ({error!r}): write `mmaccel bench {section.kind} --json` there"
        ) from error
    return found


def has_plot(section: Section, result: dict[str, Any]) -> bool:
    """Whether there is quality to draw: short runs of a benchmark can leave it out."""
    return bool(section.plot) and any(row["quality"] is not None for row in result["rows"])


def page(results: dict[str, dict[str, Any]]) -> str:
    """The page as text; the same rows give the same text."""
    parts = [INTRO]
    for section in SECTIONS:
        if section.kind in results:
            parts += _section(section, results[section.kind])
    return "\n\n".join(parts) + "\n"


def _section(section: Section, result: dict[str, Any]) -> Iterable[str]:
    yield f"## {section.title}"
    if has_plot(section, result):
        yield f"![{section.title}: {section.plot}]({section.kind}_quality.png)"
    groups = {heading: select(section, group) for heading, group in section.groups(result["rows"]).items()}
    models = ", ".join(f"`{name}`" for name in dict.fromkeys(r["model"] for f in groups.values() for r, _ in f))
    metrics = list(dict.fromkeys(r["quality_metric"] for f in groups.values() for r, _ in f if r["quality_metric"]))
    where = f"All rows are in [{section.kind}.md]({section.kind}.md) and [{section.kind}.json]({section.kind}.json)."
    on = f"Measured on {models}. " if section.kind != "kernels" else ""
    judged = "; ".join(metrics) or "not judged in this short run"
    yield f"{on}Quality: {judged}. The simple alternative: {section.simple} {where}"
    for heading, found in groups.items():
        if found:
            if heading:
                yield f"### {heading}"
            lines = [_line(section, row, role, _plain(found)) for row, role in found]
            yield bench.markdown(("method", "exact", "time", "speed-up", "quality", "plain"), lines)
            said = verdict(section, found, [row for row, _ in found])
            if said:
                yield said
    header = result["header"]
    made = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    yield f"*{made}; {_machine(header)}; {header['date'][:10]}*"


def _machine(header: dict[str, Any]) -> str:
    machine, threads = header["machine"], header["threads"]
    accelerator = "no accelerator" if machine["accelerator"] == "none" else machine["accelerator"]
    of = f"{threads} thread{'s' if threads > 1 else ''} of {machine['cores']} cores"
    return f"{machine['system']}, {machine['processor']}, {of}, {accelerator}"


def verdict(section: Section, found: Found, group: Group) -> str:
    """A sentence where the simple alternative is faster than every method and no worse."""
    ours = [_values(section, r, group) for r, role in found if role == "method"]
    simple = [_values(section, r, group) for r, role in found if role == "simple"]
    known = [other for other in ours if other is not None]
    if not known or len(known) < len(ours):
        return ""
    wins = (one is not None and all(one[0] > other[0] and one[1] >= other[1] for other in known) for one in simple)
    return "**Here the simple alternative is faster than every method, and no worse.**" if any(wins) else ""


def select(section: Section, group: Group) -> Found:
    """The rows that are shown of a table, fastest last within what is ours."""
    ours = [r for r in group if role_of(r) == "method"]
    if any(score(section, r, group) is not None for r in ours) and section.kind not in ("kernels", "speech"):
        ours = front(section, ours, group)
    others = [r for r in group if role_of(r) == "other"]
    others = sorted(_in_time(others), key=lambda r: score(section, r, group) or 0.0)[-1:]
    found = [*((r, "method") for r in sorted(ours, key=_place)), *((r, "other") for r in others)]
    return [*found, *((r, "simple") for r in group if role_of(r) == "simple")]


def role_of(row: Row) -> str:
    """What a row is: ``"method"``, ``"simple"``, ``"other"`` (somebody else's) or ``"plain"``."""
    if row["method"] in ("plain", "offline"):
        return "plain"
    if row.get("kind") == "simple" or row["method"] in ("fewer frames", "fewer steps", "fixed chunks"):
        return "simple"
    return "other" if row.get("kind") == "rival" or row["method"].startswith("moonshine-voice") else "method"


def front(section: Section, rows: Group, group: Group) -> Group:
    """The rows that no other is as good as in both speed-up and quality."""
    told = [
        (row, found) for row in _in_time(rows) if _saves(row) and (found := _values(section, row, group)) is not None
    ]
    best = [row for row, mine in told if not any(_beats(other, mine) for _, other in told)]
    # as it comes, whatever its variants do
    ours = [row for row in rows if row.get("kind") == "ours" and row not in best]
    return [*ours, *best]


def _values(section: Section, row: Row, group: Group) -> tuple[float, float] | None:
    """Speed-up and quality, both with upwards better; None where one of them was not measured."""
    quality = score(section, row, group)
    return None if quality is None or row["speedup"] is None else (row["speedup"], quality)


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether a row with this speed-up and quality makes another pointless."""
    faster, better = one[0] - other[0], one[1] - other[1]
    return (better > 0 and one[0] >= NEAR * other[0]) or (better == 0 and faster > 0)


def _saves(row: Row) -> bool:
    """Whether a row is any use: a neutral setting that the clock calls faster is none."""
    return bool(row["speedup"] is not None and row["speedup"] > 1 and (row["work_ratio"] or 0) < 1)


def _in_time(rows: Group) -> Group:
    """Without rows that took much longer than the time they were tuned to."""
    return [r for r in rows if r.get("wall_share") is None or r["wall_share"] <= 1.15 * r["budget"]]


def score(section: Section, row: Row, group: Group) -> float | None:
    """Quality with upwards better; an exact row has that of the plain run, whatever its sample says."""
    plain = next((r["baseline_quality"] for r in group if r["baseline_quality"] is not None), None)
    quality = plain if row["exact"] and plain is not None else row["quality"]
    return None if quality is None else quality if section.higher_is_better else -quality


def _place(row: Row) -> tuple[bool, float]:
    return not row["exact"], row["speedup"] or 0.0


def _plain(found: Found) -> float | None:
    return next((r["baseline_quality"] for r, _ in found if r["baseline_quality"] is not None), None)


def _line(section: Section, row: Row, role: str, plain_quality: float | None) -> list[str]:
    told = {"simple": "simple alternative: ", "other": "others: "}.get(role, "")
    named = bench.called(row)
    if row.get("kind") == "part":  # of ours, with something left out or put in
        named = f"HeterogeneousSteps, {named}"
    typed = re.match(r"[a-z]+\.[A-Z]\w+\(", named)  # what can be typed as it stands
    name = f"`{named}`" if typed else named
    if section.kind == "kernels":
        settings = ", ".join(f"{key} {value}" for key, value in row["settings"].items())
        name = f"`{row['method']}`{', ' if settings else ''}{settings}"
    seconds = bench.seconds(row)[0]
    speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}x"
    quality, plain = _figure(section, row["quality"]), _figure(section, row["baseline_quality"])
    if row.get("psnr_worst") is not None:
        quality += f" (worst {_figure(section, row['psnr_worst'])})"
    if not quality and row["exact"]:
        quality = "that of plain"
        plain = _figure(section, plain_quality) if section.kind != "speech" else ""  # its parts are of other models
    return [f"{told}{name}", "yes" if row["exact"] else "no", _time(row, seconds), speedup, quality, plain]


def _figure(section: Section, value: float | None) -> str:
    return "" if value is None else format(value, section.form)


def _time(row: Row, seconds: float | None) -> str:
    if seconds is None:
        return ""
    if row.get("real_time_factor") is not None:
        return f"{row['real_time_factor']:.2f} s a second of audio"
    each = " a frame" if row.get("table") == "codec" else ""
    return (f"{1000 * seconds:.3g} ms" if seconds < 0.1 else f"{seconds:.2f} s") + each
