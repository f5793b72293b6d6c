"""The pages of all benchmarks, written again from the rows that are committed; nothing is measured::

python -m mmaccel.demos.pages.benchmark_pages

The overview is `mmaccel bench index`.
"""

from __future__ import annotations

from pathlib import Path

from mmaccel.cli.bench import all_benchmarks
from mmaccel.comparison import results

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"


def main() -> None:
    for benchmark in all_benchmarks():
        path = FOLDER / f"{benchmark.name}.json"
        page = benchmark.page(results.load(path), path.name, f"{benchmark.name}.png")
        path.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
