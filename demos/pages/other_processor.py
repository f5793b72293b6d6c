"""Put results of another processor beside the committed ones; nothing is measured::

mmaccel bench all --page FOLDER
python -m mmaccel.demos.pages.other_processor --output docs/benchmarks/long/other_processor FOLDER/*.json
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmaccel.bench import pages
from mmaccel.bench.difference import RowPair, difference
from mmaccel.bench.selection import role_of
from mmaccel.comparison import results
from mmaccel.demos.pages.readme_figures import processor
from mmaccel.errors import WeightsError
from mmaccel.vlm.bench.text import TOLERANCE

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
INTRO = """
The benchmarks of {names} in their short form on another maker's processor, beside the committed rows of {first}, which
have more samples: of what both measured, by `python -m mmaccel.demos.pages.other_processor`. A speed-up is against the
plain model in the same alternation, so that those of two machines can be compared, and their seconds cannot. Where a
way is chosen by measuring (drafts, sparse attention, linear layers of few rows), each processor chose its own. The rows
of {first} are of older commits ({commits}), so that a difference may be the code's too.

{told}
"""
HEADINGS = ("method", "exact", "{first}", "{second}", "of it")


def beside(paths: Sequence[Path], folder: Path = FOLDER) -> dict[str, Any]:
    """The rows of both machines, pair by pair, under the header of the last file.

    Raises
    ------
    WeightsError
        If a file cannot be read, or is of another machine than the first.
    SettingError
        If a file has no row in common with that of its name in the folder.
    """
    headers, first, rows = [], set(), []
    for path in paths:
        old, new = results.load(folder / path.name), results.load(path)
        headers.append(new["header"])
        first.add(processor(old["header"]))
        if new["header"]["machine"] != headers[0]["machine"]:
            raise WeightsError(f"{path} is of another machine than {paths[0]}: run all benchmarks on one")
        pairs = difference(old, new).matched
        rows += [
            _row(path.stem, new["header"], old["header"], pair) for pair in pairs if pair.speedup_share is not None
        ]
    return {"header": {**headers[-1], "beside": ", ".join(sorted(first))}, "rows": rows}


def _row(benchmark: str, header: dict[str, Any], committed: dict[str, Any], pair: RowPair) -> dict[str, Any]:
    assert pair.old is not None and pair.new is not None
    identity = {name: pair.row[name] for name in results.IDENTITY}
    return {
        **identity,
        "benchmark": benchmark,
        "commit": header["commit"],
        "beside_commit": committed["commit"],
        "label": pair.label,
        "role": role_of(pair.row),
        "speedup": pair.new["speedup"],
        "beside": pair.old["speedup"],
        "share": pair.speedup_share,
    }


def page(result: dict[str, Any]) -> str:
    """A table for each benchmark and model."""
    first, second = result["header"]["beside"], processor(result["header"])
    headings = tuple(heading.format(first=first, second=second) for heading in HEADINGS)
    sections: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        name = f"{row['benchmark'].capitalize()}, {row['model']}"
        sections.setdefault(name, []).append(row)
    tables = {name: pages.markdown(headings, map(_line, rows)) for name, rows in sections.items()}
    commits = {row["benchmark"]: f"{row['benchmark']} {row['beside_commit'][:10]}" for row in result["rows"]}
    told = _told(result["rows"], first, second)
    intro = INTRO.format(first=first, names=", ".join(commits), commits=", ".join(commits.values()), told=told)
    return pages.page(result, "On another processor", intro, tables)


def _line(row: dict[str, Any]) -> list[str]:
    return [
        row["label"],
        "yes" if row["exact"] else "no",
        f"{row['beside']:.2f}x",
        f"{row['speedup']:.2f}x",
        f"{row['share']:.0%}",
    ]


def _told(rows: list[dict[str, Any]], first: str, second: str) -> str:
    """How far the two agree, and what gains on one of them only."""
    ours = [row for row in rows if row["role"] == "method"]
    shares = sorted(row["share"] for row in ours)
    middle = results.median(shares)
    lines = [
        f"- Of {len(ours)} rows of ours half reach at least {middle:.0%} of the speed-up of {first};"
        f" the least reaches {shares[0]:.0%}, the most {shares[-1]:.0%}."
    ]
    for fast, slow, where in (("beside", "speedup", second), ("speedup", "beside", first)):
        lost = [row for row in ours if row[fast] >= 1 / TOLERANCE and row[slow] < TOLERANCE]
        found = ", ".join(f"{row['label']} ({row[slow]:.2f}x)" for row in lost)
        lines.append(f"- Faster than the plain model on the other, and slower on {where}: {found or 'none'}.")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = pages.output_parser(__doc__)
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="results of benchmarks, by their names")
    arguments = parser.parse_args(argv)
    pages.write(arguments.output, beside(arguments.results), page)


if __name__ == "__main__":
    main()
