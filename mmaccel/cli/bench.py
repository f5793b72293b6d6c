"""The command `mmaccel bench`: its arguments, and its work."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..comparison.ranks import Ranks
from ..errors import MmaccelError, SettingError, WeightsError
from ..files.output import check_writable
from ..modality import modalities
from .arguments import THREADS, examples_of, kinds_of, whole

if TYPE_CHECKING:
    from ..bench.benchmark import Benchmark

FOLDER = Path("docs/benchmarks")
EXAMPLES = """examples:
  mmaccel bench image
  mmaccel bench image --page results/image.md
  mmaccel bench all --full --page docs/benchmarks
  mmaccel bench difference before/image.json after/image.json --fail-below 0.9
  mmaccel bench index
"""
GOES_ON = "the same command goes on where it was stopped, on the same commit and machine"


def benchmarks() -> dict[str, str]:
    """Modules by name, each with a `BENCHMARK`: one for each modality, and one for the kernels."""
    found: dict[str, str] = {}
    for modality in modalities():
        found |= modality.benchmarks()
    return {**found, "kernels": "mmaccel.kernels.bench.benchmark"}


class BenchmarksFailed(MmaccelError):
    """Some benchmarks failed; the results of the others are written."""


def benchmark_of(name: str) -> Benchmark:
    """Load a benchmark by its name."""
    return importlib.import_module(benchmarks()[name]).BENCHMARK


def all_benchmarks() -> list[Benchmark]:
    """Every benchmark."""
    return [benchmark_of(name) for name in benchmarks()]


def add_parser(commands: Any) -> None:
    """Add `bench` with its kinds to the command line."""
    kinds = kinds_of(commands, "bench", "measure methods against plain runs", epilog=EXAMPLES)
    for name in benchmarks():
        examples = f"examples:\n  mmaccel bench {name}\n  mmaccel bench {name} --page results/{name}.md"
        kind = kinds.add_parser(name, help=f"the benchmark of {name}", epilog=examples)
        _add_common(kind, "an hour or two on 2 cores")
        kind.add_argument(
            "--page", type=Path, help=f"also write the Markdown page, its plots and its rows as JSON; {GOES_ON}"
        )
        kind.set_defaults(run=run_benchmark)
    every = kinds.add_parser("all", help="all benchmarks, one after the other", epilog=examples_of("all", EXAMPLES))
    _add_common(every, "hours on 2 cores")
    every.add_argument(
        "--page",
        type=Path,
        metavar="FOLDER",
        help=f"write the pages, plots and JSON of each benchmark there when it ends; {GOES_ON}",
    )
    every.set_defaults(run=run_all)
    difference = kinds.add_parser(
        "difference", help="compare two results, row by row", epilog=examples_of("difference", EXAMPLES)
    )
    difference.add_argument("old", type=Path, metavar="OLD.json")
    difference.add_argument("new", type=Path, metavar="NEW.json")
    difference.add_argument("--json", action="store_true", help="print the rows as JSON to standard output")
    difference.add_argument(
        "--fail-below",
        type=float,
        metavar="SHARE",
        help="exit with code 1 if a speed-up is below this share of the old one",
    )
    difference.set_defaults(run=run_difference, loads_models=False)
    index = kinds.add_parser(
        "index", help="write the page and the plots of all results in a folder", epilog=examples_of("index", EXAMPLES)
    )
    index.add_argument("folder", type=Path, nargs="?", default=FOLDER, help=f"default {FOLDER}")
    index.set_defaults(run=run_index, loads_models=False)


def _add_common(kind: Any, duration: str) -> None:
    kind.add_argument("--json", action="store_true", help="print the result as JSON to standard output")
    kind.add_argument("--full", action="store_true", help=f"all settings of docs/benchmarks ({duration})")
    kind.add_argument(
        "--threads",
        type=whole(1, THREADS),
        help="CPU threads (default 1, as docs/benchmarks are measured; 2 for kernels)",
    )


def run_benchmark(arguments: argparse.Namespace) -> None:
    """Measure, and print the rows."""
    import torch

    from ..bench import pages
    from ..bench.resume import measure

    if arguments.page:
        _check_page(arguments.page, arguments.kind)
    benchmark, ranks = benchmark_of(arguments.kind), Ranks.launched()
    torch.set_num_threads(arguments.threads or benchmark.threads)
    with contextlib.redirect_stdout(sys.stderr):  # messages of other libraries are not part of the result
        result, kept = measure(benchmark, arguments.full, arguments.page, ranks)
    if ranks.rank > 0:
        return  # the first process prints and writes
    print(json.dumps(result, indent=1) if arguments.json else pages.table(result), flush=True)
    if arguments.page:  # last, so that an error in the page loses no figure
        benchmark.write_page(result, arguments.page)
        pages.write_rows(arguments.page.with_suffix(".json"), result)
    kept.remove()


def _check_page(page: Path, kind: str) -> None:
    """Raise, before anything is measured, if a page cannot be written; its folder is made."""
    if page.is_dir():
        raise SettingError(f"--page {page} is a folder: name a file, such as --page {page / kind}.md")
    if page.suffix != ".md":
        raise SettingError(f"--page {page} is no Markdown: name a file such as --page {page.with_suffix('.md')}")
    page.parent.mkdir(parents=True, exist_ok=True)
    check_writable(page, "--page")


def run_all(arguments: argparse.Namespace) -> None:
    """Run the benchmarks one after the other, each in its own process, so that none disturbs the figures of another.

    With ``--json`` every result is one line of standard output.

    Raises
    ------
    BenchmarksFailed
        At the end, if some benchmarks failed; the message names them.
    """
    from ..bench.resume import SUFFIX, Unfinished
    from ..comparison import results

    if Ranks.launched().count > 1:
        raise SettingError("bench all measures in one process after the other: share out one, such as bench vlm")
    failed, found, kinds = [], 0, benchmarks()
    path = arguments.page / f"all{SUFFIX}" if arguments.page else None
    header = {**results.result([])["header"], "threads": arguments.threads}  # None stands for each benchmark's own
    measured = Unfinished(path, header, arguments.full)
    for number, kind in enumerate(kinds, 1):
        print(f"{number} of {len(kinds)}: {kind}", file=sys.stderr, flush=True)
        if arguments.page:
            arguments.page.mkdir(parents=True, exist_ok=True)
        result, reason = _result(kind, arguments, kind in measured.parts)
        if result is not None:
            _tell(kind, result, arguments)
            found += 1
        if reason:
            print(f"{kind} failed: {reason}", file=sys.stderr, flush=True)
            failed.append(kind)
        else:
            measured.add(kind, [])
    measured.remove()
    if arguments.page and found:
        from ..bench.index import write

        write(arguments.page, all_benchmarks())
    if failed:
        again = " and ".join(f"`mmaccel bench {kind}`" for kind in failed)
        count = f"{len(failed)} of {len(kinds)} benchmarks failed"
        raise BenchmarksFailed(
            f"{count}, and the results of the others are kept; run {again} again (the reasons are above)"
        )


def _words(kind: str, arguments: argparse.Namespace) -> Iterator[str]:
    """The command line of one benchmark."""
    yield from ("bench", kind, "--json")
    if arguments.full:
        yield "--full"
    if arguments.threads:
        yield from ("--threads", str(arguments.threads))
    if arguments.page:
        yield from ("--page", str(arguments.page / f"{kind}.md"))


def _result(kind: str, arguments: argparse.Namespace, is_measured: bool) -> tuple[dict[str, Any] | None, str]:
    """The result of one benchmark, as it is kept where it was measured before, and why it failed."""
    from ..comparison import results

    if is_measured:
        with contextlib.suppress(WeightsError):  # somebody deleted it
            return results.load(arguments.page / f"{kind}.json"), ""
    return _in_a_process(list(_words(kind, arguments)))


def _in_a_process(words: list[str]) -> tuple[dict[str, Any] | None, str]:
    """Run a command; returns its result or None, and why it failed. Its standard error is passed on."""
    # -P: in a checkout the current folder must not hide the installed package
    made = subprocess.run([sys.executable, "-P", "-m", "mmaccel", *words], stdout=subprocess.PIPE, check=False)
    reason = f"exit code {made.returncode}" if made.returncode else ""
    try:
        return dict(json.loads(made.stdout)), reason
    except ValueError:
        return None, reason or "it printed no result"


def _tell(kind: str, result: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write and print a result as soon as it is measured."""
    from ..bench import pages

    if arguments.page:
        pages.write_rows(arguments.page / f"{kind}.json", result)
    print(json.dumps(result) if arguments.json else f"{kind}\n{pages.table(result)}\n", flush=True)


def run_difference(arguments: argparse.Namespace) -> int:
    """Print two results side by side; returns 1 if a speed-up fell too far."""
    from ..bench.difference import difference
    from ..comparison import results

    found = difference(results.load(arguments.old), results.load(arguments.new))
    fallen = [] if arguments.fail_below is None else found.fallen(arguments.fail_below)
    print(json.dumps(found.to_dict(), indent=1) if arguments.json else found)
    for pair in fallen:
        share = f"{pair.speedup_share:.0%} of the old speed-up, less than {arguments.fail_below:.0%}"
        print(f"mmaccel: {pair.label}: {share}", file=sys.stderr)
    return 1 if fallen else 0


def run_index(arguments: argparse.Namespace) -> None:
    """Write the page and the plots of all results in a folder."""
    from ..bench.index import write

    for path in write(arguments.folder, all_benchmarks()):
        print(f"wrote {path}")
