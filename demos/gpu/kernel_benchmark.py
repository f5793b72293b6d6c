"""Measure every kernel on a GPU, against torch's own and what else installs; under 8 minutes.

One command, no download; it refuses to report an op whose result is wrong::

    python -m mmaccel.demos.gpu.kernel_benchmark > kernel.json

Beside the seconds each row says what share of the machine's arithmetic or memory limit was reached; both
limits are measured in the same run, by a large matrix product and a large copy.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.kernels import calibrate
from mmaccel.kernels.bench import benchmark
from mmaccel.kernels.bench.attention_cases import BLOCK, sparse_case
from mmaccel.kernels.bench.case import Draw, KernelCase
from mmaccel.kernels.bench.cases import cases

from . import script

LENGTHS = (4096, 16384)


def limits(device: str, size: int, megabytes: int) -> dict[str, float]:
    """Arithmetic (bfloat16) and memory traffic that this machine reaches, in GFLOP/s and GB/s."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(megabytes << 20, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return {
        "gigaflops_limit": 2 * size**3 / _fastest(lambda: a @ b) / 1e9,
        "gigabytes_per_second_limit": 2 * x.numel() / _fastest(lambda: y.copy_(x)) / 1e9,
    }


def _fastest(run: Any, repeats: int = 10) -> float:
    entry = Entry.using(PLAIN, run)
    Runner(benchmark.Calls(), [entry], range(repeats)).run()
    return min(entry.seconds)


def flex_attention(case: KernelCase, q: Any, k: Any, v: Any, mask: torch.Tensor, causal: bool) -> None:
    """Add compiled flex attention over the same blocks to a case, where it compiles."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(_: Any, head: Any, query: Any, key: Any) -> Any:
        chosen = mask[0, head, query // BLOCK, key // BLOCK]
        return chosen & (key <= query) if causal else chosen

    try:
        length = q.shape[2]
        blocks = create_block_mask(visible, 1, q.shape[1], length, length, device=str(q.device))
        compiled = torch.compile(flex_attention)
        compiled(q, k, v, block_mask=blocks)
    except Exception as error:  # a comparison that cannot be made must not stop the rest
        print(f"flex attention left out: {str(error).splitlines()[0]}", file=sys.stderr)
        return
    case.others["flex_attention"] = lambda: compiled(q, k, v, block_mask=blocks)


def all_cases(dtype: torch.dtype, device: str, lengths: tuple[int, ...]) -> Any:
    """The benchmark's own cases, and flex attention beside three of the sparse ones."""
    yield from cases(dtype, device, lengths)
    draw = Draw(dtype, device)
    for length in lengths:
        q, k, v = (draw(1, 16, length, 128) for _ in range(3))
        for density in (0.1, 0.25, 0.5):
            case = sparse_case(q, k, v, density, causal=True)
            blocks = length // BLOCK
            order = Draw(dtype, device).order(1, 16, blocks, blocks)
            mask = order < round(density * blocks)
            mask |= torch.eye(mask.shape[-1], dtype=torch.bool, device=device)
            flex_attention(case, q, k, v, mask, causal=True)
            yield case


def rows(device: str, lengths: tuple[int, ...], reached: dict[str, float], deadline: float) -> Any:
    """One row a case, with its share of the limits, until time is up."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for case in all_cases(dtype, device, lengths):
            if time.monotonic() > deadline:
                print("time is up: the rest is left out", file=sys.stderr)
                return
            row = benchmark.measure(case, device)
            for name in ("gigaflops", "gigabytes_per_second"):
                row[f"{name}_share"] = row[name] / reached[f"{name}_limit"] if row[name] else None
            print(f"{row['method']} {row['settings']} {row['speedup']:.2f}x", file=sys.stderr)
            yield row


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--minutes", type=float, default=7.0, help="stop after about this long")
    args = script.parsed(parser, argv, "--device cpu")
    deadline = time.monotonic() + 60 * args.minutes
    on_gpu = args.device.startswith("cuda")
    reached = limits(args.device, 8192 if on_gpu else 1024, 1024 if on_gpu else 64)
    result = results.result(rows(args.device, tuple(args.lengths), reached, deadline))
    result["header"].update(reached)
    found = calibrate(args.device)
    result["header"]["break_even_density"] = dict(zip(map(str, found.lengths), found.break_even, strict=True))
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
