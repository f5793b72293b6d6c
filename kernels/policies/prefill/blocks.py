"""What the prefill policies share: queries and keys in blocks, which of them meet, and the plan of those chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import check_attention, require
from mmaccel.kernels.plan import BlockPlan, block_coverage, block_edges

from ..scores import check_count, check_share, head_scores, masked_softmax, work


@dataclass(frozen=True)
class BlockGrid:
    """Blocks of queries (rows) against blocks of keys (columns); the last query stands at the last key.

    Tables of blocks are bool, `[rows, columns]` for all heads or `[B, H, rows, columns]`.

    Parameters
    ----------
    q_len, kv_len
        Queries and keys.
    block_m, block_n
        Queries and keys in a block, powers of two of at least 16.
    causal
        Whether queries see no later keys.
    device
        Of the plan.
    budget
        At most this share of each head's visible blocks in :meth:`within_budget`, None (default) for no limit.

    Raises
    ------
    ValueError
        If a length or a block size is not possible, or `budget` is not in (0, 1].
    """

    q_len: int
    kv_len: int
    block_m: int
    block_n: int
    causal: bool
    device: torch.device | str = "cpu"
    budget: float | None = None

    def __post_init__(self) -> None:
        check_count("q_len", self.q_len, 1)
        check_count("kv_len", self.kv_len, 1)
        for name, size in (("block_m", self.block_m), ("block_n", self.block_n)):
            check_count(name, size, 16)
            require(size & (size - 1) == 0, name, "a power of two, at least 16", size)
        if self.budget is not None:
            check_share("budget", self.budget)

    @classmethod
    def of(
        cls, q: torch.Tensor, k: torch.Tensor, block_m: int, block_n: int, causal: bool, budget: float | None = None
    ) -> BlockGrid:
        """The grid of `q [B, Hq, M, D]` and `k [B, Hkv, N, D]`, which must fit each other."""
        check_attention(q, k, k)
        return cls(q.shape[2], k.shape[2], block_m, block_n, causal, q.device, budget)

    def near(self, window: int) -> torch.Tensor:
        """Blocks in which some query sees a key less than `window` tokens away."""
        return self._covered(self.causal, window)

    @cached_property
    def visible(self) -> torch.Tensor:
        """Blocks in which some query sees some key."""
        return self._covered(self.causal, None)

    @cached_property
    def diagonal(self) -> torch.Tensor:
        """Visible blocks that hold the queries' own positions."""
        return self._covered(False, (0, 0)) & self.visible

    @cached_property
    def anchors(self) -> torch.Tensor:
        """What prefill policies never drop: the first block of keys and, if causal, the diagonal."""
        first = torch.zeros_like(self.visible)
        first[:, 0] = True
        return ((first | self.diagonal) if self.causal else first) & self.visible

    def edges(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Places of the first and last query of each row `[rows, 1]`, and of the first and last key `[columns]`."""
        return block_edges(self.q_len, self.kv_len, self.block_m, self.block_n, self.device)

    def _covered(self, causal: bool, window: int | tuple[int, int] | None) -> torch.Tensor:
        sizes = (self.q_len, self.kv_len, self.block_m, self.block_n)
        return block_coverage(*sizes, causal, window, self.device)[0]

    def pooled_scores(self, q: torch.Tensor, k: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Scores between block means, `[B, Hq, rows, columns]`."""
        return head_scores(pool_mean(q, self.block_m), pool_mean(k, self.block_n), scale)

    def pooled_weights(self, q: torch.Tensor, k: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Attention between block means, `[B, Hq, rows, columns]`; 0 where nothing is visible."""
        return masked_softmax(self.pooled_scores(q, k, scale), self.visible)

    def plan(self, table: torch.Tensor) -> BlockPlan:
        """The plan of a table of blocks."""
        return BlockPlan.from_mask(
            table if table.ndim == 4 else table[None, None],
            q_len=self.q_len,
            kv_len=self.kv_len,
            block_m=self.block_m,
            block_n=self.block_n,
            causal=self.causal,
        )

    def within_budget(self, chosen: torch.Tensor, key: torch.Tensor, forced: torch.Tensor) -> BlockPlan:
        """The plan of the chosen and forced blocks: of each head those with the smallest keys, up to the budget.

        All three are tables, `key` one of each head; forced blocks come first and may exceed the budget.
        """
        kept = ((chosen | forced) & self.visible).expand_as(key)
        if self.budget is not None:
            count = share_of(self.visible.flatten(-2), self.budget)
            flat = keep_first(key.flatten(-2), forced.flatten(-2), kept.flatten(-2), count)
            kept = flat.unflatten(-1, key.shape[-2:])
        return self.plan(kept)


def pool_mean(x: torch.Tensor, block: int) -> torch.Tensor:
    """Mean of each block of tokens, `[B, H, N, D]` to `[B, H, blocks, D]`; the last block may be short."""
    tokens, dtype = x.shape[2], work(x[:0]).dtype
    whole = tokens // block * block
    # summed from what is there: of a long prompt a copy in this precision takes gigabytes
    total = x[:, :, :whole].unflatten(2, (whole // block, block)).sum(3, dtype=dtype)
    if whole < tokens:
        total = torch.cat([total, x[:, :, whole:].sum(2, keepdim=True, dtype=dtype)], 2)
    size = (tokens - torch.arange(0, tokens, block, device=x.device)).clamp(max=block)
    return total / size[:, None]


def pool_sum(x: torch.Tensor, block: int) -> torch.Tensor:
    """Sum of each block of the last axis."""
    blocks = -(-x.shape[-1] // block)
    return F.pad(x, (0, blocks * block - x.shape[-1])).unflatten(-1, (blocks, block)).sum(-1)


def exclusive_mass(weights: torch.Tensor) -> torch.Tensor:
    """For each entry of the last axis the sum of the heavier ones (ties: of the earlier ones)."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = F.pad(ordered.cumsum(-1)[..., :-1], (1, 0))
    return torch.empty_like(weights).scatter_(-1, order, before)


def share_of(visible: torch.Tensor, share: float) -> torch.Tensor:
    """`share` of the visible entries of the last axis, to the nearest whole number."""
    return (visible.sum(-1) * share + 0.5).floor().long()


def keep_first(
    key: torch.Tensor, forced: torch.Tensor, visible: torch.Tensor, count: torch.Tensor | int
) -> torch.Tensor:
    """The `count` visible entries of the last axis with the smallest keys, forced ones first and always."""
    forced, visible = (forced & visible).expand_as(key), visible.expand_as(key)
    order = key.masked_fill(forced, -torch.inf).masked_fill(~visible, torch.inf).argsort(dim=-1, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(key.shape[-1], device=key.device).expand_as(order))
    limit = torch.as_tensor(count, device=key.device)
    return ((rank < limit[..., None]) | forced) & visible
