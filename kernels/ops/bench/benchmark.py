"""`mmaccel bench kernels`: every op against torch's own way; an op whose result is wrong is not timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.bench.benchmark import Benchmark, Section, by, in_one
from mmaccel.bench.findings import plain_of
from mmaccel.bench.pages import markdown
from mmaccel.bench.winners import ahead, speed
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload
from mmaccel.errors import MmaccelError

from .. import __all__ as PUBLIC
from .. import should_use_sparse
from .case import KernelCase
from .cases import cases

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
USUAL = 4  # times the error of torch's own way, by which ours may be off where that grows with the shape
ROUNDS = 9
CALLS = 20  # in a row on a GPU, whose queue then hides what a launch costs, as in a model


def rows(full: bool = False, device: str = "cpu") -> Iterator[dict[str, Any]]:
    """Rows of the benchmark; `full` adds float16 and, on a GPU, longer sequences.

    Raises
    ------
    MmaccelError
        If an op's result is off by more than its tolerance: then there is nothing to report.
    """
    dtypes = (torch.float32, torch.bfloat16) + ((torch.float16,) if full else ())
    for dtype, causal in itertools.product(dtypes, (False, True)):  # measured before anything else is timed
        should_use_sparse(0.5, 4096, device, causal, dtype)
    on_gpu = torch.device(device).type == "cuda"
    lengths = (4096, 16384) if full and on_gpu else (4096,)
    for dtype in dtypes:
        for case in tqdm(list(cases(dtype, device, lengths)), desc=f"kernels, {str(dtype)[6:]}"):
            yield measure(case, device)


def measure(case: KernelCase, device: str) -> dict[str, Any]:
    """Check, then time ours and torch's in one alternation."""
    error, usual = case.error(), case.usual_error() if case.usual_error else 0.0
    tolerance = max(TOLERANCE[case.dtype], USUAL * usual)
    if not error <= tolerance:
        raise MmaccelError(
            f"{case.op} ({case.shape}, {case.dtype}) is off by {error:.2g}, more than {tolerance:.2g}:"
            " no figures are reported; please open an issue with `mmaccel env`"
        )
    ours, plain = Entry.using("ours", case.run), Entry.using(PLAIN, case.baseline)
    others = [Entry.using(name, run) for name, run in case.others.items()]
    calls = Calls(CALLS if torch.device(device).type == "cuda" else 1)
    for each in Runner(calls, [ours, plain, *others], range(ROUNDS)).run().entries:
        for sample in each.samples:
            sample.seconds /= calls.count
    seconds = results.median(ours.seconds)
    return results.row(
        modality="kernels",
        model=f"{case.shape} {str(case.dtype)[6:]}",
        method=f"kernels.{case.op}",
        settings=case.settings,
        exact=True,
        seeds=[0],
        **ours.timing(plain),
        quality_metric="largest error against float64, over 1 + the value",
        quality=error,
        baseline_quality=0.0,
        baseline=case.baseline_name,
        gigaflops=case.flops / seconds / 1e9 if case.flops else None,
        gigabytes_per_second=case.bytes / seconds / 1e9 if case.bytes else None,
        **{f"{each.label}_seconds": results.median(each.seconds) for each in others},
    )


class Calls(Workload):
    """Each entry is a function of its own, whose result nobody keeps, called `count` times in a row."""

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def run(self, target: Any, seed: int, fewer: int | None = None) -> None:
        for _ in range(self.count):
            target()


INTRO = """
Measured by `mmaccel bench kernels --full` on {place}: every op against torch's own way, in one alternating
run of medians.
Other processors have other ratios, so that three choices are made by measuring, in a quiet moment, and kept for each
processor (`mmaccel env` shows them): from which density on dense attention is faster than block-sparse, in which of
four ways a step of decoding reads a long cache, and in which of three ways linear layers compute a few rows. An op
whose result is off from float64 by more than its tolerance is not timed at all. Block-sparse attention is asked for
random blocks, as many in every row; `cutover` says that all blocks are attended to above the break-even density. The
raw rows are in [{json}]({json}).

Decoding is set beside torch's attention with the query heads of a key head as rows of one head, which reads keys once
as ours does; with `enable_gqa=True`, as models call it, it reads them for each query head (`enable_gqa_seconds`).
"""
LIMITS = """
- **Decoding** is bound by memory: all keys and values are read once, which is as fast as the threads of this machine
  can read.
- **Selected decoding** is a few short operations around a gather. In an alternation the dense run sweeps the caches
  each time, and a single call starts with neither data nor code at hand; on warm caches it takes a fraction of that.
  Layers in turn are nearer to a model: the data is cold, the code is not.
- **Drafts** of 16 tokens have 64 rows to a key head: there torch's own attention is efficient too.
- **Linear layers of a few rows**, as passes of a few tokens have, are bound by memory as well; torch's own product
  reads a weight again for a second and a third row, or copies it.
- **Token means** move memory, as torch's own operation does.
"""
HEADINGS = ("op", "case", "against", "ms", "ms, torch", "speed-up", "error")


def tables(rows: list[dict[str, Any]]) -> dict[str, str]:
    """A table for each type."""
    typed = [{**row, "dtype": row["model"].split()[-1]} for row in public(rows)]
    return {dtype: markdown(HEADINGS, map(_line, group)) for dtype, group in by("dtype", "{}", typed).items()}


def public(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of ops that can still be called; a measured file may hold others."""
    return [row for row in rows if row["method"].removeprefix("kernels.") in PUBLIC]


def _line(row: dict[str, Any]) -> list[str]:
    case = ", ".join(f"{key} {value}" for key, value in row["settings"].items()) or row["model"].rsplit(" ", 1)[0]
    times = (f"{1000 * row[key]:.2f}" for key in ("wall_seconds", "baseline_seconds"))
    op = row["method"].removeprefix("kernels.")
    return [op, case, row["baseline"], *times, f"{row['speedup']:.2f}x", f"{row['quality']:.1e}"]


def _extremes(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The best and the worst case of every op, in float32."""
    found = []
    for group in by("method", "{}", [row for row in public(rows) if row["model"].endswith("float32")]).values():
        ordered = sorted(group, key=lambda row: float(row["speedup"]))
        found += [ordered[-1], ordered[0]] if len(ordered) > 1 else ordered
    return {"": found}


def _name(row: dict[str, Any]) -> str:
    return ", ".join([f"`{row['method']}`", *(f"{key} {value}" for key, value in row["settings"].items())])


def over_cases(rows: list[dict[str, Any]]) -> str:
    """Every op against torch's own, over its cases and types."""
    told = {
        op: ahead(FASTER, [(row, plain_of([row])) for row in group], _case)
        for op, group in by("method", "`{}`", public(rows)).items()
    }
    return "\n".join(f"- {op} against torch's own: {text}." for op, text in told.items() if text)


def _case(row: dict[str, Any]) -> str:
    case = ", ".join(f"{key} {value}" for key, value in row["settings"].items())
    return ", ".join(filter(None, (case, row["model"].rsplit(" ", 1)[-1])))


FASTER = speed("speed")
SECTION = Section(
    _extremes,
    "torch's own operation, which is what the speed-up is against.",
    is_mixed=True,
    names_models=False,
    name=_name,
    said=lambda rows: "",
    more=over_cases,
)
BENCHMARK = Benchmark("kernels", "Kernels", in_one(rows), SECTION, INTRO, tables, LIMITS, threads=2)
