"""BlockPlan: which blocks of keys each block of queries attends to."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Self

import torch

from .checks import require


@dataclass(frozen=True)
class BlockPlan:
    """Blocks of keys to attend to, in compressed rows, for :func:`mmaccel.kernels.block_sparse_attention`.

    Parameters
    ----------
    row_ptr
        int32 `[B, H, rows + 1]`: row `i` of a head reads ``col[row_ptr[i]:row_ptr[i + 1]]``. `B` is 1 or the
        batch; `H` is 1, the number of key heads or the number of query heads; `rows` is
        ``ceil(q_len / block_m)``.
    col
        int32 `[entries]`: numbers of key blocks. Within a row the first `n_full` ascend, and so do the others.
    n_full
        int32 `[B, H, rows]`: how many leading columns of a row every query of it sees whole, under the
        `causal` and `window` of the call. 0 is always right, and only slower.
    block_m, block_n
        Queries and keys in a block.
    q_len, kv_len
        Queries and keys, padding to whole blocks excluded.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or columns are unsorted, repeated or out of range. Values are
        read once, here, and never again.

    Examples
    --------
    >>> blocks = torch.ones(1, 1, 2, 2, dtype=torch.bool).tril()
    >>> plan = BlockPlan.from_mask(blocks, q_len=128, kv_len=128, causal=True)
    >>> plan.col.tolist(), plan.n_full.tolist()
    ([0, 0, 1], [[[0, 1]]])
    """

    row_ptr: torch.Tensor
    col: torch.Tensor
    n_full: torch.Tensor
    block_m: int
    block_n: int
    q_len: int
    kv_len: int

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_values()

    @classmethod
    def from_mask(
        cls,
        mask: torch.Tensor,
        *,
        q_len: int,
        kv_len: int,
        block_m: int = 64,
        block_n: int = 64,
        causal: bool = False,
        window: int | tuple[int, int] | None = None,
    ) -> Self:
        """From a boolean table of blocks `[B, H, rows, columns]`; the whole blocks of each row come first.

        `causal` and `window` must be those of the call: blocks that they hide entirely are dropped, and those
        that they leave whole are marked so. No value is read back from the device but the number of entries.
        """
        require(mask.ndim == 4 and mask.dtype == torch.bool, "mask", "a bool tensor [B, H, rows, columns]", mask)
        rows, columns = -(-q_len // block_m), -(-kv_len // block_n)
        require(mask.shape[2:] == (rows, columns), "mask", f"{rows} rows and {columns} columns of blocks", mask)
        some, full = block_coverage(q_len, kv_len, block_m, block_n, causal, window, mask.device)
        chosen = mask & some
        # whole blocks first, then the others, each in ascending order: a stable sort by kind
        kind = torch.where(chosen, torch.where(full, 0, 1), 2)
        order = kind.argsort(dim=-1, stable=True)
        count = chosen.sum(-1)
        col = order[torch.arange(columns, device=mask.device) < count[..., None]].to(torch.int32)
        ends = count.flatten().cumsum(0).view(count.shape).to(torch.int32)
        starts = (ends - count).to(torch.int32)
        row_ptr = torch.cat([starts, ends[..., -1:]], -1)
        n_full = (chosen & full).sum(-1).to(torch.int32)
        return cls._trusted(row_ptr, col, n_full, block_m, block_n, q_len, kv_len)

    @classmethod
    def from_columns(
        cls, columns: torch.Tensor, *, q_len: int, kv_len: int, block_m: int = 64, block_n: int = 64
    ) -> Self:
        """From as many blocks for every row, int64 `[B, H, rows, K]`, ascending, without `causal` and `window`.

        No value is read back from the device.
        """
        fits = columns.ndim == 4 and columns.shape[2] == -(-q_len // block_m)
        require(fits, "columns", f"[B, H, {-(-q_len // block_m)}, K]", columns)
        batch, heads, rows, count = columns.shape
        starts = torch.arange(batch * heads, device=columns.device)[:, None] * (rows * count)
        row_ptr = (starts + torch.arange(rows + 1, device=columns.device) * count).view(batch, heads, rows + 1)
        n_full = torch.full_like(columns[..., -1], count)
        if kv_len % block_n:  # the last block is not whole, and ascending columns have it last
            n_full -= (columns[..., -1] == kv_len // block_n).to(n_full.dtype)
        tables = row_ptr.to(torch.int32), columns.flatten().to(torch.int32), n_full.to(torch.int32)
        return cls._trusted(*tables, block_m, block_n, q_len, kv_len)

    @classmethod
    def _trusted(cls, *fields: Any) -> Self:
        """Made without checks, which would read values back from the device: the caller built them right."""
        plan = object.__new__(cls)
        for name, value in zip(cls.__dataclass_fields__, fields, strict=True):
            object.__setattr__(plan, name, value)
        plan._check_shapes()
        return plan

    @property
    def rows(self) -> int:
        """Blocks of queries."""
        return -(-self.q_len // self.block_m)

    @property
    def columns(self) -> int:
        """Blocks of keys."""
        return -(-self.kv_len // self.block_n)

    @property
    def density(self) -> float:
        """Share of all blocks that are attended to; hidden ones do not count as such."""
        return self.col.numel() / (self.n_full.numel() * self.columns)

    def visible_share(self, causal: bool = False, window: int | tuple[int, int] | None = None) -> float:
        """Share of the blocks with a visible pair that is attended to."""
        sizes = (self.q_len, self.kv_len, self.block_m, self.block_n)
        return min(1.0, self.density / _visible_blocks(*sizes, causal, window))

    def mask(self) -> torch.Tensor:
        """The boolean table of blocks `[B, H, rows, columns]`."""
        heads = self.n_full.shape[:2]
        counts = self.row_ptr.diff(dim=-1).flatten().long()
        row = torch.arange(counts.numel(), device=self.col.device)
        row = row.repeat_interleave(counts, output_size=self.col.numel())  # a size that is not told is read back
        table = torch.zeros(counts.numel(), self.columns, dtype=torch.bool, device=self.col.device)
        table[row, self.col.long()] = True
        return table.view(*heads, self.rows, self.columns)

    def to(self, device: torch.device | str) -> Self:
        """The same plan on another device."""
        tensors = (self.row_ptr.to(device), self.col.to(device), self.n_full.to(device))
        return self._trusted(*tensors, self.block_m, self.block_n, self.q_len, self.kv_len)

    def _check_shapes(self) -> None:
        for name in ("block_m", "block_n"):
            size = getattr(self, name)
            require(size >= 16 and size & (size - 1) == 0, name, "a power of two, at least 16", size)
        for name in ("q_len", "kv_len"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name, ndim in (("row_ptr", 3), ("col", 1), ("n_full", 3)):
            tensor = getattr(self, name)
            require(tensor.dtype == torch.int32 and tensor.ndim == ndim, name, f"int32 with {ndim} axes", tensor)
            require(tensor.device == self.col.device, name, f"on {self.col.device}, as col is", tensor)
        require(self.n_full.shape[2] == self.rows, "n_full", f"[B, H, {self.rows}]", self.n_full)
        wanted = (*self.n_full.shape[:2], self.rows + 1)
        require(tuple(self.row_ptr.shape) == wanted, "row_ptr", f"of shape {wanted}", self.row_ptr)

    def _check_values(self) -> None:
        counts = self.row_ptr.diff(dim=-1).flatten().long()
        begins, ends = self.row_ptr[..., 0].flatten(), self.row_ptr[..., -1].flatten()
        joined = bool((begins[1:] == ends[:-1]).all()) and int(begins[0]) == 0 and int(ends[-1]) == self.col.numel()
        require(joined and bool((counts >= 0).all()), "row_ptr", "ascending, from 0 to the length of col", self.row_ptr)
        col = self.col.long()
        inside = bool(((col >= 0) & (col < self.columns)).all())
        require(inside, "col", f"between 0 and {self.columns - 1}", self.col)
        full = self.n_full.flatten().long()
        require(bool(((full >= 0) & (full <= counts)).all()), "n_full", "between 0 and the length of its row", full)
        row = torch.repeat_interleave(torch.arange(counts.numel(), device=col.device), counts)
        place = torch.arange(col.numel(), device=col.device) - self.row_ptr[..., :-1].flatten().long()[row]
        key = (row * 2 + (place >= full[row])) * self.columns + col
        require(bool((key.diff() > 0).all()), "col", "ascending within each row, whole blocks first", self.col)
        unique = (row * self.columns + col).unique().numel() == col.numel()
        require(unique, "col", "without repeated blocks in a row", self.col)


def block_coverage(
    q_len: int,
    kv_len: int,
    block_m: int,
    block_n: int,
    causal: bool,
    window: int | tuple[int, int] | None,
    device: torch.device | str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which blocks hold at least one visible pair, and which hold nothing but visible pairs, `[rows, columns]`."""
    left, right = window_sides(window, causal)
    first_query, last_query, first_key, last_key = block_edges(q_len, kv_len, block_m, block_n, device)
    some = torch.ones(len(first_query), len(first_key), dtype=torch.bool, device=device)
    full = (first_key + block_n <= kv_len).expand_as(some)
    if right >= 0:
        some = some & (first_key <= last_query + right)
        full = full & (last_key <= first_query + right)
    if left >= 0:
        some = some & (last_key >= first_query - left)
        full = full & (first_key >= last_query - left)
    return some, full


def block_edges(
    q_len: int, kv_len: int, block_m: int, block_n: int, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Places of the first and last query of each row `[rows, 1]`, and of the first and last key `[columns]`."""
    row = torch.arange(0, q_len, block_m, device=device)[:, None]
    first_key = torch.arange(0, kv_len, block_n, device=device)
    before = kv_len - q_len  # the last query stands at the last key
    last_query = (row + block_m).clamp(max=q_len) - 1 + before
    return row + before, last_query, first_key, (first_key + block_n).clamp(max=kv_len) - 1


@functools.lru_cache(maxsize=1024)
def _visible_blocks(
    q_len: int, kv_len: int, block_m: int, block_n: int, causal: bool, window: int | tuple[int, int] | None
) -> float:
    """Share of all blocks that hold a visible pair; on the CPU, as reading it from a GPU would stall the stream."""
    some, _ = block_coverage(q_len, kv_len, block_m, block_n, causal, window, "cpu")
    return int(some.sum()) / some.numel()


def window_sides(window: int | tuple[int, int] | None, causal: bool) -> tuple[int, int]:
    """Keys visible before and after a query; -1 is without limit.

    `window=w` is the query itself and the `w - 1` keys before it and, unless `causal`, after it.
    """
    if window is None:
        return -1, 0 if causal else -1
    if isinstance(window, int):
        require(window >= 1, "window", "at least 1", window)
        return window - 1, 0 if causal else window - 1
    require(len(window) == 2 and min(window) >= -1, "window", "an int or (left, right), -1 for no limit", window)
    return window[0], 0 if causal else window[1]
