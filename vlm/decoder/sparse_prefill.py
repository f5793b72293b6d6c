"""Sparse prefill: a long prompt's queries read only the blocks of keys that matter to them; lossy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from mmaccel import kernels
from mmaccel.kernels.plan import BlockPlan
from mmaccel.kernels.policies import PREFILL
from mmaccel.kernels.policies.prefill.blocks import BlockGrid, keep_first
from mmaccel.method import Advice, is_count, is_share
from mmaccel.registry import register
from mmaccel.stepping.tensors import count_bytes

from .call import AttentionCall, GenerateRun
from .method import DecoderMethod
from .rows import causal_pairs, visible_in_blocks

Plans = dict[tuple[int, int], BlockPlan | None]


@register("vlm")
@dataclass(frozen=True)
class SparsePrefill(DecoderMethod):
    """Let the queries of a long prompt read only the blocks of keys that a policy chooses; lossy.

    MInference (Jiang et al., 2024) and later block policies: attention of long prompts is sparse, and a cheap estimate
    finds where. Decoding steps do not change.

    Parameters
    ----------
    policy
        How blocks are chosen: ``"pooled_top_k"`` (default), ``"pooled_top_p"``, ``"a_shape"``,
        ``"vertical_slash"``, ``"flex_prefill"`` or ``"sparge"``; see :mod:`mmaccel.kernels.policies`.
    budget
        Share of the blocks that causal attention sees, above 0 and up to 1 (plain); default 0.25. What `min_keys` and
        `dense_queries` add comes on top, and is most in short prompts.
    min_length
        Fewest queries for a sparse pass, default 256: below, dense attention is always faster.
    block_m
        Queries in a block, a power of two of at least 16, default 64.
    block_n
        Keys in a block, likewise.
    min_keys
        Keys that a query reads at least, where it sees so many, in whole blocks: the nearest ones make up for what the
        policy has too few of; default 1024, as in FlexPrefill (2025); 0 for none.
    dense_queries
        Last queries of a pass that read everything, rounded up to whole blocks, default 64, as many as MInference goes
        by; 0 for none. An answer goes on from them, and :class:`PrefillDrop` has them vote.
    always
        Attend sparsely also where dense attention is measured to be faster (default False).

    Notes
    -----
    Lossy: blocks that are left out may matter. Rows with padding on the left are computed one by one and give
    the same output as alone; other masks run densely.

    Raises
    ------
    SettingError
        If a setting is out of range.

    Examples
    --------
    >>> print(SparsePrefill(policy="flex_prefill", budget=0.5))
    vlm.SparsePrefill(policy='flex_prefill', budget=0.5)
    """

    policy: str = "pooled_top_k"
    budget: float = 0.25
    min_length: int = 256
    block_m: int = 64
    block_n: int = 64
    min_keys: int = 1024
    dense_queries: int = 64
    always: bool = False

    paper: ClassVar[str] = (
        "MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse Attention, 2024"
    )
    decodes: ClassVar[bool] = False
    advice: ClassVar[Advice] = Advice(
        "Prompts of many thousand tokens: the longer, the more.",
        "Nearly nothing at 8,000 tokens; at 2,000 there is little to gain.",
    )
    engaging: ClassVar[dict[str, Any]] = {
        "budget": 0.3,
        "min_length": 32,
        "block_m": 16,
        "block_n": 16,
        "min_keys": 0,
        "dense_queries": 1,
        "always": True,
    }

    def __post_init__(self) -> None:
        self._require(self.policy in [*PREFILL], "policy", f"one of {', '.join(PREFILL)}")
        self._require(is_share(self.budget), "budget", "above 0 and at most 1, a share of the blocks")
        self._require(is_count(self.min_length, 2), "min_length", "a whole number of at least 2")
        for name in ("block_m", "block_n"):
            size = getattr(self, name)
            self._require(is_count(size, 16) and size & (size - 1) == 0, name, "a power of two of at least 16")
        for name in ("min_keys", "dense_queries"):
            self._require(is_count(getattr(self, name), 0), name, "a whole number of at least 0")
        self._require(isinstance(self.always, bool), "always", "True or False")

    def attend(self, call: AttentionCall) -> torch.Tensor | None:
        if self.is_neutral or call.queries < self.min_length:
            return None
        call = _without_room(call)
        if call.starts is None:
            call.run.warn(
                "SparsePrefill ran densely: the mask is more than causal with padding on the left, as that of a padded"
                " batch with a cache of fixed length is"
            )
            return None
        plans: Plans = {rows: self._plan(call, rows, *rest) for rows, *rest in call.pieces()}
        if not any(plans.values()):
            return None
        call.run.engaged.add(self.name)
        held = count_bytes([(plan.row_ptr, plan.col, plan.n_full) for plan in plans.values() if plan is not None])
        call.run.plan_bytes = max(call.run.plan_bytes, held)
        call.count_pairs(sum(_pairs(call, plans[rows], rows, *rest) for rows, *rest in call.pieces()))
        return call.by_rows(lambda query, key, value, rows: _attend(call, plans[rows], query, key, value))

    def _plan(self, call: AttentionCall, rows: tuple[int, int], start: int, query_start: int) -> BlockPlan | None:
        """Which blocks these rows read, None where dense attention is the better choice."""
        query, key, _ = call.part(rows, start, query_start)
        if query.shape[2] < self.min_length:
            return None
        blocks = {"block_m": self.block_m, "block_n": self.block_n}
        plan = PREFILL[self.policy](query, key, budget=self.budget, causal=True, scale=call.scaling, **blocks)
        plan = _filled(plan, self.min_keys, self.dense_queries)
        share = plan.visible_share(causal=True)
        if self.always or kernels.should_use_sparse(share, plan.kv_len, query.device, causal=True, dtype=query.dtype):
            return plan
        call.run.warn(f"SparsePrefill ran densely where that is faster here: {share:.0%} of the blocks are left")
        return None

    def idle(self, run: GenerateRun) -> str:
        return f"no prompt was longer than min_length={self.min_length} tokens"


def _without_room(call: AttentionCall) -> AttentionCall:
    """A call without the slots of a cache of fixed length that are still empty: a mask is missing there alone."""
    if call.starts is not None or call.mask is not None or call.evicted is not None:
        return call
    key, value = call.key[:, :, : call.queries], call.value[:, :, : call.queries]
    return replace(call, key=key, value=value, starts=[0] * len(key))


def _filled(plan: BlockPlan, keys: int, queries: int) -> BlockPlan:
    """The plan with the nearest blocks added where rows have fewer keys than that, and all blocks for last queries."""
    if not keys and not queries:
        return plan
    grid = BlockGrid(plan.q_len, plan.kv_len, plan.block_m, plan.block_n, True, plan.col.device)
    table = plan.mask()
    if keys:
        last_query, last_key = grid.edges()[1], grid.edges()[3]
        distance = (last_query - last_key).expand_as(table).float()
        table = keep_first(distance, table, grid.visible, table.sum(-1).clamp(min=-(-keys // plan.block_n)))
    if queries:
        table[:, :, max(0, plan.q_len - queries) // plan.block_m :] = True
    return grid.plan(table)


def _attend(
    call: AttentionCall, plan: BlockPlan | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    return kernels.block_sparse_attention(query, key, value, plan, causal=True, scale=call.scaling)[0]


def _pairs(call: AttentionCall, plan: BlockPlan | None, rows: tuple[int, int], start: int, query_start: int) -> Any:
    """Pairs of query and key in the blocks of a plan, all rows and heads counted; a tensor."""
    batch, heads = rows[1] - rows[0], call.query.shape[1]
    if plan is None:
        return batch * heads * causal_pairs(call.queries - query_start, call.keys - start)
    pairs = visible_in_blocks(plan.q_len, plan.kv_len, plan.block_m, plan.block_n, plan.col.device)
    times = batch * heads // (plan.n_full.shape[0] * plan.n_full.shape[1])
    return (plan.mask().sum((0, 1)) * pairs).sum() * times
