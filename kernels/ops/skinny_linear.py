"""Linear layers of a few rows on a CPU, as passes of a few tokens or texts have: skinny matrix products.

torch hands float32 products to MKL, which on some processors reads the whole weight once more for a second and a third
row, copies it for more, and reads it slowly for one. For these, the product turned round (weights times inputs) and
oneDNN are up to twice as fast; the figures are in docs/benchmarks/kernels. Which one is depends on the processor, the
rows and the columns of the weight, so it is measured at first use and kept for this CPU, see
:mod:`mmaccel.kernels.choosing`. A process never changes its choice: two runs with equal inputs give equal bits.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

from mmaccel import private

from .choosing import kept_way

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # that are measured; more are left to torch
COLUMNS = (576, 896, 1280, 2048, 4096)  # of weights that are measured, and stand for those up to half way to the next
LEAST_BYTES = 1 << 19  # of a weight: below, there is little to gain
MEASURED_BYTES = 40 << 20  # of the weight, so that it comes from main memory, as those of a model do
ROUNDING = 1e-4
_LOCK = threading.Lock()
# The way for so many rows, columns and threads, once a call has asked. Where it is torch's own, nothing else is looked
# at: in a pass of a small model that alone took a twentieth of the time.
_found: dict[tuple[int, int, int], str] = {}

Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def turned(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Weights times inputs, which streams the weight once."""
    rows = x.reshape(-1, x.shape[-1])
    columns = (rows if len(rows) > 1 else torch.cat([rows, rows])).t()  # for a single one MKL has no better way
    product = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return product[:, : len(rows)].t().contiguous().view(*x.shape[:-1], len(weight))


WAYS: dict[str, Way] = {"plain": F.linear, "turned": turned, "onednn": private.onednn_linear}


def skinny_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear`, by the way that is fastest for so few rows on this CPU; equal up to rounding.

    Anything but 1 to 64 rows of float32 on a CPU, without gradients, goes to `F.linear`.

    Parameters
    ----------
    x
        Inputs `[..., I]`.
    weight, bias
        `[O, I]` and `[O]` or None.

    Examples
    --------
    >>> x, weight = torch.ones(3, 512), torch.ones(512, 512)
    >>> torch.allclose(skinny_linear(x, weight), torch.nn.functional.linear(x, weight))
    True
    """
    if torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    asked = x.numel() // max(1, x.shape[-1]), weight.shape[1], torch.get_num_threads()
    name = _found.get(asked)
    if name != "plain":
        if not 1 <= asked[0] <= ROWS[-1] or not suits(weight) or not _is_plain(x, weight, bias):
            return F.linear(x, weight, bias)
        if name is None:
            with _LOCK:  # two threads must not measure against each other, nor find two ways
                name = _found[asked] = way(_rounded(asked[0]), _nearest(asked[1]), asked[2])
    return WAYS[name](x, weight, bias)


def measure(columns: Iterable[int] = COLUMNS) -> None:
    """Measure what is not kept for this CPU yet, so that no later call takes the time: before something is timed."""
    with _LOCK:
        for nearest in sorted({*map(_nearest, columns)}):
            for rows in ROWS:
                way(rows, nearest, torch.get_num_threads())


def suits(weight: torch.Tensor) -> bool:
    """Whether a weight can have a faster way."""
    is_dense = private.is_plain(weight) and weight.layout == torch.strided
    return is_dense and weight.is_cpu and weight.dtype == torch.float32 and weight.nbytes >= LEAST_BYTES


def _is_plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether nothing but the product is wanted: no gradient, no other type."""
    learns = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    wants_gradient = torch.is_grad_enabled() and learns
    is_other = x.dtype != weight.dtype or not x.is_cpu or torch.is_autocast_enabled("cpu")
    return not wants_gradient and not is_other


def _rounded(rows: int) -> int:
    """Up to one of the numbers that are measured."""
    return next(count for count in ROWS if count >= rows)


@functools.cache
def _nearest(columns: int) -> int:
    """The one of the columns that are measured."""
    return min(COLUMNS, key=lambda count: abs(count - columns))


@functools.cache
def way(rows: int, columns: int, threads: int) -> str:
    """Name of the fastest way for so many rows and columns; `threads` is part of what it holds for."""
    name = f"linear layers of {rows} rows, {columns} columns"
    return kept_way(name, WAYS, functools.partial(_examples, rows, columns), ROUNDING)


def _examples(rows: int, columns: int) -> list[tuple[torch.Tensor, torch.Tensor, None]]:
    """Inputs, and a weight drawn in a small tile that is repeated, which is quick."""
    generator = torch.Generator().manual_seed(0)
    x, tile = torch.randn(rows, columns, generator=generator), torch.randn(64, columns, generator=generator)
    return [(x, tile.repeat(max(1, MEASURED_BYTES // tile.nbytes), 1), None)]
