"""The pages of all benchmarks, written again from the rows that are committed; nothing is measured::

python -m mmaccel.demos.pages.benchmark_pages

The overview is `mmaccel bench index`. A page in `long/` is made by the script that its text names first.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

from mmaccel.cli.bench import all_benchmarks
from mmaccel.comparison import results

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
SCRIPT = re.compile(r"python -m\s+(mmaccel[\w.]+\w)")


def main() -> None:
    for benchmark in all_benchmarks():
        path = FOLDER / f"{benchmark.name}.json"
        page = benchmark.page(results.load(path), path.name, f"{benchmark.name}.png")
        path.with_suffix(".md").write_text(page, encoding="utf-8")
    for path in (FOLDER / "long").glob("*.md"):
        path.write_text(long_page(path), encoding="utf-8")


def long_page(path: Path) -> str:
    """What the script that a page names makes of the rows beside it."""
    script = SCRIPT.search(path.read_text(encoding="utf-8"))
    assert script, f"{path.name} names no script, such as `python -m mmaccel.demos.gpu.page`"
    result = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return str(importlib.import_module(script[1]).page(result))


if __name__ == "__main__":
    main()
