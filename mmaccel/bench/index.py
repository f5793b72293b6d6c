"""docs/benchmarks/index.md: what all benchmarks found, in one page made from their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..comparison.results import cell, described, load
from ..errors import SettingError, WeightsError
from ..files.output import replacing
from ..modality import modalities
from . import pages
from .benchmark import Benchmark, Row, Section
from .findings import told, typed
from .plots import plot
from .selection import plain_quality, select

Results = list[tuple[Benchmark, dict[str, Any]]]

INTRO = """# Benchmarks

Made by `mmaccel bench index` from the JSON files beside this page; no figure is typed. Each section first says **who
wins and by how much**. *At no loss* are rows whose mean quality is not below that of the plain run, and the fastest of
ours stands beside the fastest others; qualities are compared among rows that are no slower than the plain run. Ours is
one row, the best of ours on the mean or, of video, the setting that is the default, and the others are their best on
each figure, the worst sample as well.

The tables have the rows that save time and that no other row of ours beats in both time and quality (differences below
3 % in time are ignored), exact ones too, the simple alternative that anyone can have without a method, and where
methods of other papers or packages stand beside ours, the best of them. All rows, also those that lost, are on the
linked pages.

*speed-up* is against the plain run of the same model in the same alternation. *exact* keeps the plain output, or its
distribution. The plots have time to the left and quality upwards: the top left corner is where one wants to be.
`mmaccel bench all --full --page FOLDER` measures all of this page on your machine, `mmaccel bench difference OLD.json
NEW.json` compares two results, and `mmaccel tune` does the same for one method on your own model and input."""

SCRIPT = re.compile(r"python -m mmaccel\.demos\.(\w+)\.")  # of a page, whose package says what it is about


def write(folder: Path, benchmarks: Sequence[Benchmark]) -> list[Path]:
    """Write `index.md` and the plots beside the results in a folder; returns what was written.

    Raises
    ------
    SettingError
        If the folder has no result.
    WeightsError
        If a file of it is damaged.
    """
    found, written = read(folder, benchmarks), []
    for benchmark, result in found:
        if benchmark.section.has_plot(result["rows"]):
            written.append(folder / _picture(benchmark))
            with replacing(written[-1]) as temporary:
                plot(benchmark, result, temporary)
    with replacing(folder / "index.md") as temporary:
        temporary.write_text(page(found, longer(folder)), encoding="utf-8")
    return [*written, folder / "index.md"]


def read(folder: Path, benchmarks: Sequence[Benchmark]) -> Results:
    """The benchmarks that have a result in a folder, with their results."""
    measured = [benchmark for benchmark in benchmarks if (folder / f"{benchmark.name}.json").is_file()]
    if not measured:
        raise SettingError(f"{folder} has no result: measure first with `mmaccel bench all --page {folder}`")
    return [(benchmark, _read(benchmark, folder)) for benchmark in measured]


def _read(benchmark: Benchmark, folder: Path) -> dict[str, Any]:
    path = folder / f"{benchmark.name}.json"
    found = load(path)
    try:
        benchmark.section.groups(found["rows"])
    except (LookupError, TypeError) as error:
        raise WeightsError(
            f"{path} holds no rows of this benchmark ({error!r}): write `mmaccel bench {benchmark.name} --json` there"
        ) from error
    return found


def _picture(benchmark: Benchmark) -> str:
    """The picture of the benchmark's page, unless that draws something else."""
    return f"{benchmark.name}.png" if benchmark.plot is None else f"{benchmark.name}_quality.png"


def longer(folder: Path) -> list[str]:
    """Links to the pages of `long/` in a folder by their titles: a line for each thing that their scripts are about."""
    kinds = {"": "Machines", **{one.name: one.title for one in modalities()}, "serving": "Servers and batches"}
    found: dict[str, list[str]] = {about: [] for about in kinds.values()}
    for path in sorted((folder / "long").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        script = SCRIPT.search(text)
        title = text.partition("\n")[0].removeprefix("# ")
        found[kinds[script[1] if script and script[1] in kinds else ""]].append(f"[{title}](long/{path.name})")
    return [f"- {about}: {', '.join(links)}." for about, links in found.items() if links]


def page(found: Results, more: Sequence[str] = ()) -> str:
    """The page as text, with `more` lines of links to further pages; the same rows give the same text."""
    further = ["Measured by scripts of their own:", "\n".join(more)] if more else []
    return "\n\n".join([INTRO, *further, *(part for each in found for part in _section(*each))]) + "\n"


def _section(benchmark: Benchmark, result: dict[str, Any]) -> Iterable[str]:
    section, name = benchmark.section, benchmark.name
    yield f"## {benchmark.title}"
    if section.has_plot(result["rows"]):
        yield f"![{benchmark.title}: {section.plot}]({_picture(benchmark)})"
    whole = section.groups(result["rows"])
    groups = {heading: select(section, group) for heading, group in whole.items()}
    models = ", ".join(f"`{name}`" for name in dict.fromkeys(r["model"] for f in groups.values() for r, _ in f))
    metrics = list(dict.fromkeys(r["quality_metric"] for f in groups.values() for r, _ in f if r["quality_metric"]))
    where = f"All rows are in [{name}.md]({name}.md) and [{name}.json]({name}.json)."
    on = f"Measured on {models}. " if section.names_models else ""
    judged = "; ".join(metrics) or "not judged in this short run"
    yield f"{on}Quality: {judged}. The simple alternative: {section.simple} {where}"
    for heading, found in groups.items():
        if found:
            if heading:
                yield f"### {heading}"
            yield from filter(None, (told(section, whole[heading]),))
            plain = plain_quality(row for row, _ in found)
            lines = [_line(section, row, role, plain) for row, role in found]
            yield pages.markdown(("method", "exact", "time", "speed-up", "quality", "plain"), lines)
    yield from filter(None, (section.more(result["rows"]),))
    header = result["header"]
    made = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    made += f", commit {pages.committed(header)}"
    yield f"*{made}; {described(header)}; {header['date'][:10]}*"


def _line(section: Section, row: Row, role: str, of_plain: float | None) -> list[str]:
    told = {"simple": "simple alternative: ", "other": "others: "}.get(role, "")
    name = typed(section.name(row))
    speedup = cell(row["speedup"], ".2f", "x")
    quality, plain = cell(row["quality"], section.form), cell(row["baseline_quality"], section.form)
    worst = row.get("psnr_worst", row.get("quality_worst"))
    told_of_worst = section.worst(row) if worst is None else cell(worst, section.form)
    if told_of_worst:
        quality += f" (worst {told_of_worst})"
    if not quality and row["exact"]:
        quality = "that of plain"
        plain = "" if section.is_mixed else cell(of_plain, section.form)
    return [f"{told}{name}", "yes" if row["exact"] else "no", section.time(row), speedup, quality, plain]
