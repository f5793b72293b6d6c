"""Block-sparse attention from gathered blocks and dense attention.

It rests on two ideas. The keys that a query may see by position (causal, window) are always one interval, so two
numbers a query are the whole mask. And blocks that are seen whole need no mask, so the two kinds are attended to
separately and merged by their log-sum-exps.
"""

from __future__ import annotations

import math

import torch

from ..plan import block_coverage
from .dense import Mask, dense, nothing_seen
from .merge_states import merge_states
from .workspace import gather_rows

# Of gathered keys: more falls out of the caches; with less, threads wait for each other at the end of too many parts,
# which costs nothing on a quiet machine and half of the speed on a busy one.
CHUNK_BYTES = 8 << 20
ROWS = 192  # queries of a block where no plan gives one: torch's kernel is slower on shorter ones

Pair = tuple[torch.Tensor, torch.Tensor]


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    row_ptr: torch.Tensor | None,
    col: torch.Tensor | None,
    n_full: torch.Tensor | None,
    block_m: int,
    block_n: int,
    left: int,
    right: int,
    scale: float,
) -> Pair:
    if not q.numel():
        return nothing_seen(q)
    low, high = intervals(q, k, left, right)
    sizes = (q.shape[2], k.shape[2], block_m, block_n, left, right)
    if row_ptr is not None and col is not None and n_full is not None and not _takes_all(row_ptr, col, *sizes):
        return Rows(q, k, v, row_ptr, col, n_full, block_m, block_n, low, high, scale).attend()
    if left < 0 and right < 0:
        return heads_packed(q, k, v, scale)
    if left < 0 and right == 0 and q.shape[2] == k.shape[2]:
        return dense(q, repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1]), scale, causal=True)
    return Ranges(q, k, v, low, high, scale).attend()


def intervals(q: torch.Tensor, k: torch.Tensor, left: int, right: int) -> Pair:
    """First key that each query sees, and the one after the last, int64 `[M]`."""
    queries, keys = q.shape[2], k.shape[2]
    position = torch.arange(queries, device=q.device) + keys - queries
    low = torch.zeros_like(position) if left < 0 else (position - left).clamp(min=0)
    high = torch.full_like(position, keys) if right < 0 else (position + right + 1).clamp(max=keys)
    return low, high


def _takes_all(
    row_ptr: torch.Tensor, col: torch.Tensor, q_len: int, kv_len: int, block_m: int, block_n: int, left: int, right: int
) -> bool:
    """Whether a plan names every block that can be seen, and so leaves nothing out; it may name others too."""
    some, _ = block_coverage(q_len, kv_len, block_m, block_n, False, (left, right), col.device)
    counts = row_ptr.diff(dim=-1)
    least = int(some.sum()) * counts.shape[0] * counts.shape[1]
    if col.numel() < least:
        return False
    row = torch.arange(len(some), device=col.device).expand_as(counts).flatten().repeat_interleave(counts.flatten())
    return int(some[row, col.long()].sum()) == least


def repeat_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Key heads repeated for their query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def pack(q: torch.Tensor, heads: int) -> torch.Tensor:
    """`[B, Hq, M, D]` to `[B, Hkv, group * M, D]`: the queries of a key head, one after another."""
    return q.reshape(q.shape[0], heads, -1, q.shape[3])


def heads_packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: Mask | None = None) -> Pair:
    """Dense attention with the query heads of a key head as further queries, for which `mask` is repeated."""
    output, lse = dense(pack(q, k.shape[1]), k, v, scale, mask)
    return output.reshape(q.shape), lse.reshape(q.shape[:3])


class Ranges:
    """Attention without a plan: each block of queries reads the range of keys that its intervals span."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, low: torch.Tensor, high: torch.Tensor, scale: float
    ) -> None:
        self.q, self.k, self.v, self.low, self.high, self.scale = q, k, v, low, high, scale
        self.group = q.shape[1] // k.shape[1]
        self.last: tuple[torch.Tensor, torch.Tensor, int, Mask] | None = None

    def attend(self) -> Pair:
        parts = [self._rows(slice(i, i + ROWS)) for i in range(0, self.q.shape[2], ROWS)]
        outputs, lses = zip(*parts, strict=True)
        return torch.cat(outputs, 2), torch.cat(lses, 2)

    def _rows(self, rows: slice) -> Pair:
        q, low, high = self.q[:, :, rows], self.low[rows], self.high[rows]
        begin, end = int(low.min()), int(high.max())
        inner, outer = int(low.max()), int(high.min())
        if begin >= end:
            return torch.zeros_like(q), q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
        pieces = [(begin, end)]
        if outer - inner > (end - begin) // 2 and outer - inner >= ROWS:  # worth a pass of its own, without mask
            pieces = [(begin, inner), (inner, outer), (outer, end)]
        parts = []
        for first, last in pieces:
            if first < last:
                mask = None if (first, last) == (inner, outer) else self._mask(low - first, high - first, last - first)
                parts.append(heads_packed(q, self.k[:, :, first:last], self.v[:, :, first:last], self.scale, mask))
        return _join(parts)

    def _mask(self, low: torch.Tensor, high: torch.Tensor, length: int) -> Mask:
        """The mask of intervals within a range, kept because neighbouring rows of a band need the same one."""
        if self.last is not None:
            last_low, last_high, last_length, mask = self.last
            if last_length == length and torch.equal(last_low, low) and torch.equal(last_high, high):
                return mask
        key = torch.arange(length, device=low.device)
        visible = (key >= low[:, None]) & (key < high[:, None])
        mask = Mask(visible.repeat(self.group, 1)[None, None], self.q.dtype)
        self.last = (low, high, length, mask)
        return mask


def _join(parts: list[Pair]) -> Pair:
    if len(parts) == 1:
        return parts[0]
    outputs, lses = zip(*parts, strict=True)
    return merge_states(torch.stack(outputs), torch.stack(lses))


class Rows:
    """The rows of a plan: `unit` numbers every row of every plan head, and has its queries and its columns."""

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        row_ptr: torch.Tensor,
        col: torch.Tensor,
        n_full: torch.Tensor,
        block_m: int,
        block_n: int,
        low: torch.Tensor,
        high: torch.Tensor,
        scale: float,
    ) -> None:
        self.shape, self.scale, self.block_m, self.block_n = q.shape, scale, block_m, block_n
        batch, query_heads, length, width = q.shape
        # A plan of one head or of key heads lets the query heads of a key head share what is gathered.
        heads = query_heads if n_full.shape[1] == query_heads else k.shape[1]
        self.group, self.rows = query_heads // heads, n_full.shape[2]
        self.keys, self.values = (_blocks(repeat_heads(x, heads), block_n) for x in (k, v))
        self.block_bytes = self.keys.shape[1] * self.keys.element_size()
        self.columns = -(-k.shape[2] // block_n)
        padded = torch.nn.functional.pad(q, (0, 0, 0, self.rows * block_m - length))
        split = padded.view(batch, heads, self.group, self.rows, block_m, width).transpose(2, 3)
        self.queries = split.reshape(-1, self.group * block_m, width)
        self.low, self.high = (self._per_row(x) for x in (low, high))
        start, end = row_ptr[..., :-1], row_ptr[..., 1:]
        start, end, full = (x.expand(batch, heads, -1).reshape(-1).long() for x in (start, end, n_full))
        self.col, self.start, self.middle, self.end = col.long(), start, start + full, end
        # where the blocks of each unit's head begin among all blocks
        self.base = torch.arange(batch * heads, device=q.device).repeat_interleave(self.rows) * self.columns

    def _per_row(self, bounds: torch.Tensor) -> torch.Tensor:
        """Interval bounds by block row, `[rows, block_m]`; padding queries see nothing."""
        padding = self.rows * self.block_m - len(bounds)
        return torch.nn.functional.pad(bounds, (0, padding)).view(self.rows, self.block_m)

    def attend(self) -> Pair:
        parts = []
        for begin, end, masked in ((self.start, self.middle, False), (self.middle, self.end, True)):
            if bool((end > begin).any()):
                parts.append(self._part(begin, end - begin, masked))
        if not parts:
            output = self.queries.new_zeros(self.queries.shape)
            parts = [(output, output.new_full(output.shape[:2], -math.inf, dtype=torch.float32))]
        return self._unpack(*_join(parts))

    def _part(self, begin: torch.Tensor, counts: torch.Tensor, masked: bool) -> Pair:
        """Every unit over `counts` of its columns from `begin` on."""
        # Units with the same number of columns stand together, so that each pass reads and writes slices.
        order = counts.argsort(stable=True)
        queries = self.queries[order][:, None]
        output = torch.zeros_like(queries)
        lse = output.new_full(output.shape[:3], -math.inf, dtype=torch.float32)
        sizes, lengths = counts[order].unique_consecutive(return_counts=True)
        place = 0
        for size, length in zip(sizes.tolist(), lengths.tolist(), strict=True):
            units = order[place : place + length]
            if size:
                column = self.col[begin[units, None] + torch.arange(size, device=units.device)]
                blocks = self.base[units, None] + column
                at_once = max(torch.get_num_threads(), CHUNK_BYTES // (size * self.block_bytes))
                for i in range(0, length, at_once):
                    here, some = slice(place + i, place + min(i + at_once, length)), slice(i, i + at_once)
                    mask = self._mask(units[some], column[some]) if masked else None
                    key, value = self._gather(blocks[some])
                    output[here], lse[here] = dense(queries[here], key, value, self.scale, mask)
            place += length
        back = order.argsort()
        return output[back][:, 0], lse[back][:, 0]

    def _gather(self, blocks: torch.Tensor) -> Pair:
        """Keys and values of `blocks [units, size]`, each `[units, 1, size * block_n, D]`, until the next call."""
        flat, shape = blocks.flatten(), (len(blocks), 1, -1, self.shape[-1])
        return gather_rows("key", self.keys, flat).view(shape), gather_rows("value", self.values, flat).view(shape)

    def _mask(self, units: torch.Tensor, column: torch.Tensor) -> Mask:
        """Mask `[units, 1, group * block_m, keys]` from the interval of each query."""
        key = (column[..., None] * self.block_n + torch.arange(self.block_n, device=column.device)).flatten(1)
        low, high = (x[units % self.rows, :, None] for x in (self.low, self.high))
        visible = (key[:, None] >= low) & (key[:, None] < high)
        return Mask(visible.repeat(1, self.group, 1)[:, None], self.queries.dtype)

    def _unpack(self, output: torch.Tensor, lse: torch.Tensor) -> Pair:
        batch, heads, length, width = self.shape
        split = (batch, heads // self.group, self.rows, self.group, self.block_m)
        output = output.view(*split, width).transpose(2, 3).reshape(batch, heads, -1, width)
        lse = lse.view(split).transpose(2, 3).reshape(batch, heads, -1)
        return output[:, :, :length].contiguous(), lse[:, :, :length].contiguous()


def _blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """`[B, H, N, D]` as a table with one block of tokens a row, the last block filled with zeros."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[2] % block))
    return padded.reshape(-1, block * x.shape[3])
