"""Selected attention: every decoding step reads only the tokens that a policy chooses; lossy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers.cache_utils import Cache

from mmaccel.cache import SelectingCache, SelectingLayer, estimate_bytes
from mmaccel.kernels.policies import DECODE, dominant_pairs, label_channels
from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from .call import FEW_QUERIES, AttentionCall, GenerateRun
from .method import DecoderMethod
from .rows import causal_pairs

# What these policies learn from the prompt: under which name they keep it, and how it is found.
LEARNED: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "double_sparsity": ("channels", label_channels),
    "fasa": ("pairs", dominant_pairs),
}
SAMPLE = 64  # queries at the end of a prompt to learn it from


@register("vlm")
@dataclass(frozen=True)
class SelectKV(DecoderMethod):
    """Keep the whole cache, and let every decoding step read only the tokens that a policy chooses; lossy.

    TokenSelect (Wu et al., 2024) and similar methods: a step needs few of the tokens, but different ones in each step,
    so nothing is thrown away. The prompt is computed in full; a later pass of up to 32 tokens, as of a short question,
    reads chosen tokens, as a step does.

    Parameters
    ----------
    policy
        How tokens are chosen: ``"token_select"`` (default), ``"double_sparsity"``, ``"fasa"`` or
        ``"recycled_attention"``; see :mod:`mmaccel.kernels.policies`.
    budget
        Share of the context to read, above 0 and up to 1 (plain), default 0.1; None where `tokens` is given.
    tokens
        Number of tokens to read instead, at least 2; None (default) to go by `budget`.
    dense_layers
        First layers that read everything, default 2 as in the papers.

    Notes
    -----
    Lossy: tokens that are left out may matter. Each row of a padded batch has its own budget and gives the same
    output as alone.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `budget` and `tokens` is given.

    Examples
    --------
    >>> print(SelectKV(budget=None, tokens=2048))
    vlm.SelectKV(budget=None, tokens=2048)
    """

    policy: str = "token_select"
    budget: float | None = 0.1
    tokens: int | None = None
    dense_layers: int = 2

    paper: ClassVar[str] = "TokenSelect: Efficient Long-Context Inference via Dynamic Token-Level KV Selection, 2024"
    advice: ClassVar[Advice] = Advice(
        "Very long contexts, from which every step needs something else.",
        "The whole cache stays in memory; at 2,000 tokens choosing costs more than reading all.",
    )
    role: ClassVar[str] = "decoding cache"
    engaging: ClassVar[dict[str, Any]] = {"budget": 0.2, "dense_layers": 1}
    replaces_cache: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._require(self.policy in [*DECODE], "policy", f"one of {', '.join(DECODE)}")
        self._check_budget()
        self._require(is_count(self.dense_layers, 0), "dense_layers", "a whole number of at least 0")

    def make_cache(self, config: Any, prompt: int, new: int) -> Cache:
        return SelectingCache(config, DECODE[self.policy], prompt + new)

    def cache_bytes(self, config: Any, batch: int, prompt: int, new: int, dtype: torch.dtype) -> int:
        return estimate_bytes(config, batch, prompt + new, dtype)

    def attend(self, call: AttentionCall) -> torch.Tensor | None:
        if not self._selects(call):
            return None
        if call.starts is None:
            call.run.warn("SelectKV ran plainly: the mask is more than causal with padding on the left")
            return None
        if not any(self.count(call.keys - start) < call.keys - start for start in call.starts):
            return None
        call.run.engaged.add(self.name)
        pairs: list[Any] = []
        output = call.by_rows(lambda query, key, value, rows: self._attend(call, query, key, value, rows, pairs))
        call.count_pairs(sum(pairs))
        return output

    def _selects(self, call: AttentionCall) -> bool:
        few = call.queries <= FEW_QUERIES and call.keys > call.queries
        return isinstance(call.cached, SelectingLayer) and few and call.layer_idx >= self.dense_layers

    def _attend(
        self,
        call: AttentionCall,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rows: tuple[int, int],
        pairs: list[Any],
    ) -> torch.Tensor:
        length, queries = key.shape[2], query.shape[2]
        count = self.count(length)
        token_idx = None
        if count < length:
            token_idx = call.cached.choose(query, key, count, tuple(range(*rows)), call.scaling)
            position = torch.arange(length - queries, length, device=key.device)[:, None]
            chosen = token_idx[..., None, :]
            seen = ((chosen >= 0) & (chosen <= position)).sum()
            pairs.append(seen * (query.shape[1] // key.shape[1]))
        else:
            pairs.append(query.shape[0] * query.shape[1] * causal_pairs(queries, length))
        return call.verify(query, key, value, token_idx)

    def after(self, call: AttentionCall) -> None:
        """After a prompt or another turn: let the policy begin anew, with what it learns from it."""
        if call.queries <= FEW_QUERIES or not isinstance(call.cached, SelectingLayer):
            return
        if self.policy not in LEARNED:
            call.cached.states.clear()  # votes that none of the new tokens had a part in
        elif call.starts is not None and call.layer_idx >= self.dense_layers:
            name, learn = LEARNED[self.policy]
            for rows, start, query_start in call.pieces():
                if start < call.keys:
                    query, key, _ = call.part(rows, start, query_start)
                    call.cached.state(tuple(range(*rows)))[name] = learn(query[:, :, -SAMPLE:], key)

    def idle(self, run: GenerateRun) -> str:
        return "no step had more tokens than it may read, in a layer after the dense ones"
