"""Pages and tables of results, as Markdown and for a terminal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..comparison.results import called, cell, described
from ..files.output import replacing


def page(result: dict[str, Any], title: str, intro: str, sections: dict[str, str]) -> str:
    """A Markdown page: title, what was measured on which machine, and one table per section.

    Parameters
    ----------
    intro
        What was measured and how to read it.
    sections
        Heading to the finished table.
    """
    header = result["header"]
    facts = (
        f"- versions: {', '.join(f'{k} {v}' for k, v in header['versions'].items())}",
        f"- commit: {committed(header)}",
        f"- machine: {described(header)}",
        f"- date: {header['date']}",
    )
    parts = [f"# {title}", intro.strip(), "\n".join(facts)]
    parts += [f"## {heading}\n\n{body}" for heading, body in sections.items()]
    return "\n\n".join(parts) + "\n"


def output_parser(about: str | None) -> argparse.ArgumentParser:
    """Options of a script that writes a page: `--output`; the script adds its own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="path of the result without .json and .md")
    return parser


def run(
    about: str | None,
    page: Callable[[dict[str, Any]], str],
    measure: Callable[..., dict[str, Any] | Iterator[dict[str, Any]]],
    plot: Callable[[dict[str, Any], Path], None] | None = None,
    threads: bool = True,
    **options: dict[str, Any],
) -> None:
    """All of a script that measures: read its command line, measure by so many `--threads`, write result and page.

    Parameters
    ----------
    about
        Its docstring.
    page
        The page of a result.
    measure
        Takes the options by name, and returns a result, or results that grow: each is written.
    plot
        Draws the picture of a result to a path, beside its page; default None for none.
    threads
        Whether there is the option `--threads` (default True): not where processes of one thread each do the work.
    options
        Name of an option to what `add_argument` takes.
    """
    import torch

    parser = output_parser(about)
    if threads:
        parser.add_argument("--threads", type=int, default=1, help="of the processor (default 1)")
    for name, settings in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    told = vars(parser.parse_args())
    output = told.pop("output")
    torch.set_num_threads(told.pop("threads", 1))
    found = measure(**told)
    for result in [found] if isinstance(found, dict) else found:
        write(output, result, page)
        if plot is not None:
            plot(result, output.with_suffix(".png"))


def write(path: Path, result: dict[str, Any], page: Callable[[dict[str, Any]], str]) -> None:
    """Write a result as JSON and its page as Markdown, both of that name, and show the page; the folder is made."""
    text = page(result)
    write_rows(path.with_suffix(".json"), result)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    tqdm.write(text)


def write_rows(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, whole or not at all; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def committed(header: dict[str, Any]) -> str:
    """The commit that was measured, and whether anything in it had been changed; a result without one says so.

    Examples
    --------
    >>> committed({"commit": "36a45fe0c1d2", "clean": False})
    '36a45fe0c1, with changes that were not committed'
    >>> committed({"commit": None, "clean": None})
    'not recorded'
    """
    if not header.get("commit"):
        return "not recorded"
    return header["commit"][:10] + ("" if header["clean"] else ", with changes that were not committed")


def markdown(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    headings = list(headings)
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def table(result: dict[str, Any]) -> str:
    """The rows as a Markdown table, fastest last within what was measured together."""
    lines = []
    for r in result["rows"]:
        quality = cell(r["quality"], ".3g")
        if r["baseline_quality"] is not None:
            quality += f" (plain {r['baseline_quality']:.3g})"
        work = "" if r["work_ratio"] is None else f"{1 / r['work_ratio']:.2f}x fewer"
        times = cell(r["wall_seconds"], ".2f"), cell(r["speedup"], ".2f", "x")
        lines.append([called(r), "yes" if r["exact"] else "no", *times, work, quality])
    return markdown(("method", "exact", "seconds", "speed-up", "passes", "quality"), lines)
