"""`mmaccel bench kernels`: every op against torch's own way; an op whose result is wrong is not timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.bench import result as bench
from mmaccel.errors import MmaccelError

from .. import should_use_sparse
from .cases import Case, Run, cases

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
ROUNDS = 9


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


INTRO = """
Measured by `mmaccel bench kernels`: every op against torch's own way, in one alternating run of medians. An op
whose result is off from float64 by more than its tolerance is not timed at all. Block-sparse attention is asked for
random blocks, as many in every row, with `cutover=True`: above the break-even density, which is measured on this
machine, it attends to everything. The raw rows are in [{json}]({json}).
"""


LIMITS = """
- **Decoding** is bound by memory: 16,384 tokens in float32 are 67 MB of keys and values, which two threads of this
  machine read in 1 to 2 ms at best.
- **Selected decoding** is a few operations of some 10 microseconds each around a gather of 4 MB. In an alternation the
  dense run sweeps the caches each time, and a single call starts with neither data nor code at hand; on warm caches it
  takes a third (0.3 ms). Eight layers in turn are nearer to a model: the data is cold, the code is not.
- **Drafts** of 16 tokens have 64 rows to a key head: there torch's own attention is efficient too.
- **Merging, writing and token means** move memory, as torch's own operations do.
"""


def write_page(result: dict[str, Any], path: Path) -> None:
    """The Markdown page of a result."""
    sections = {}
    for dtype in dict.fromkeys(r["model"].split()[-1] for r in result["rows"]):
        lines = [
            [
                r["method"].removeprefix("kernels."),
                ", ".join(f"{k} {v}" for k, v in r["settings"].items()) or r["model"].rsplit(" ", 1)[0],
                r["baseline"],
                f"{1000 * r['wall_seconds']:.2f}",
                f"{1000 * r['baseline_seconds']:.2f}",
                f"{r['speedup']:.2f}x",
                f"{r['quality']:.1e}",
            ]
            for r in result["rows"]
            if r["model"].endswith(dtype)
        ]
        sections[dtype] = bench.markdown(("op", "case", "against", "ms", "ms, torch", "speed-up", "error"), lines)
    sections["What limits each"] = LIMITS.strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    intro = INTRO.format(json=path.with_suffix(".json").name)
    path.write_text(bench.page(result, "Kernels", intro, sections), encoding="utf-8")


def measure(case: Case, device: str) -> dict[str, Any]:
    """Check, then time ours and torch's in one alternation."""
    error = case.error()
    if not error <= TOLERANCE[case.dtype]:
        raise MmaccelError(
            f"{case.op} ({case.shape}, {case.dtype}) is off by {error:.2g}, more than {TOLERANCE[case.dtype]:g}:"
            " no figures are reported; please open an issue with `mmaccel env`"
        )
    runs = {"ours": case.run, "baseline": case.baseline, **case.others}
    for run in runs.values():
        run()
    seconds = bench.alternate({name: _timed(run) for name, run in runs.items()}, ROUNDS)
    ours, base = bench.median(seconds["ours"]), bench.median(seconds["baseline"])
    return bench.row(
        modality="kernels",
        model=f"{case.shape} {str(case.dtype)[6:]}",
        method=f"kernels.{case.op}",
        settings=case.settings,
        exact=True,
        seeds=[0],
        wall_seconds=ours,
        baseline_seconds=base,
        speedup=bench.median(b / a for a, b in zip(seconds["ours"], seconds["baseline"], strict=True)),
        quality_metric="largest error against float64, over 1 + the value",
        quality=error,
        baseline_quality=0.0,
        baseline=case.baseline_name,
        gigaflops=case.flops / ours / 1e9 if case.flops else None,
        gigabytes_per_second=case.bytes / ours / 1e9 if case.bytes else None,
        **{f"{name}_seconds": bench.median(seconds[name]) for name in case.others},
    )


def _timed(run: Run) -> Callable[[int], float]:
    def timed(_: int) -> float:
        bench.synchronize()
        began = time.perf_counter()
        run()
        bench.synchronize()
        return time.perf_counter() - began

    return timed
