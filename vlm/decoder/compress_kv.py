"""Compressed cache: after the prompt each layer keeps only the tokens that a policy chooses; lossy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache

from mmaccel.cache import EvictingCache, EvictingLayer, RaggedLayer, estimate_bytes
from mmaccel.kernels.policies import COMPRESS, Visual
from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from .call import FEW_QUERIES, AttentionCall, GenerateRun
from .method import DecoderMethod
from .rows import causal_pairs, runs

# Of snap_kv, where nothing else is asked for; chosen on texts and planted numbers that no benchmark has.
RECENT, KERNEL = 0.8, 15
VOTERS = ("snap_kv", "fast_kv", "st_lite")  # policies by the attention of the end of the prompt


@register("vlm")
@dataclass(frozen=True)
class CompressKV(DecoderMethod):
    """Run the prompt exactly, then keep only those of its tokens that a policy chooses; lossy.

    SnapKV (Li et al., 2024): the answer will need the tokens that the end of the prompt attends to, per key head.
    The cache shrinks, so that decoding is faster and longer contexts fit.

    Parameters
    ----------
    policy
        How tokens are chosen: ``"snap_kv"`` (default), ``"fast_kv"``, ``"streaming"``, or ``"st_lite"`` for agents
        that look at screenshots; see :mod:`mmaccel.kernels.policies`. Where the layout of the pictures is not
        known, and after the first prompt, ``"st_lite"`` is ``"snap_kv"`` as published.
    budget
        Share of the context to keep, above 0 and up to 1 (plain), default 0.2; None where `tokens` is given.
    tokens
        Number of tokens to keep instead, at least 2; None (default) to go by `budget`.
    window
        Queries at the end of the prompt that vote on what is kept, and whose own tokens are kept; at most half of
        what is kept. None (default) for those of the policy: 32, or 8 for ``"fast_kv"``. A later pass of more queries
        than this, or than 32 (another turn, or a chunk of the prompt), reduces the cache to the budget again; shorter
        passes keep all their tokens.
    recent
        Share of what is kept that are the newest tokens, at least 0 and below 1; the others are voted for. With
        ``"snap_kv"`` only, where None (default) is 0.8, or less where fewer than 30 would be voted for: the text goes
        on about as well as with the newest tokens alone, and most of what is asked for is still found. 0 is as
        published.
    kernel
        Width of the pooling of votes over neighbouring tokens, odd, 1 for none. None (default) is 15 with
        ``"snap_kv"`` and 7, as published, with the others; ``"streaming"`` has no votes.
    head_budgets
        Let the key heads of a layer share one budget, so that heads that attend to more of the prompt keep more
        (Ada-KV, 2024; no head less than a fifth of its part); with ``"snap_kv"`` only, default False. Each head
        uses memory for its own tokens and is computed separately, which costs some time if there are many heads.

    Notes
    -----
    Lossy: dropped tokens are gone. Positions continue as if they were still there. Each row of a padded batch
    has its own budget and gives the same output as alone. In transformers' assisted decoding guesses neither vote nor
    are dropped, and those that come with the prompt attend to all of it.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `budget` and `tokens` is given.

    Examples
    --------
    >>> print(CompressKV(policy="streaming"))
    vlm.CompressKV(policy='streaming')
    """

    policy: str = "snap_kv"
    budget: float | None = 0.2
    tokens: int | None = None
    window: int | None = None
    recent: float | None = None
    kernel: int | None = None
    head_budgets: bool = False

    paper: ClassVar[str] = "SnapKV: LLM Knows What You are Looking for Before Generation, 2024"
    advice: ClassVar[Advice] = Advice(
        "Long answers to long prompts: every decoding step reads a small cache.",
        "What the end of the prompt does not ask for is gone, also for the next turn.",
    )
    role: ClassVar[str] = "decoding cache"
    engaging: ClassVar[dict[str, Any]] = {"budget": 0.2}
    replaces_cache: ClassVar[bool] = True
    drops_keys: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._require(self.policy in [*COMPRESS], "policy", f"one of {', '.join(COMPRESS)}")
        self._check_budget()
        window, kernel, votes = self.window, self.kernel, self.policy in VOTERS
        self._require(window is None or is_count(window), "window", "a whole number of at least 1, or None")
        odd = kernel is None or (votes and is_count(kernel) and kernel % 2 == 1)
        self._require(odd, "kernel", f"an odd number with {' or '.join(VOTERS)}, or None")
        by_votes = self.recent is None or (
            is_number(self.recent, 0, 1) and self.recent < 1 and self.policy == "snap_kv"
        )
        self._require(by_votes, "recent", "at least 0 and below 1 with policy='snap_kv', or None")
        shared = self.head_budgets is False or (self.head_budgets is True and self.policy == "snap_kv")
        self._require(shared, "head_budgets", "False, or True with policy='snap_kv'")

    def make_cache(self, config: Any, prompt: int, new: int) -> Cache:
        return EvictingCache(config, max(1, new), RaggedLayer if self.head_budgets else EvictingLayer)

    def cache_bytes(self, config: Any, batch: int, prompt: int, new: int, dtype: torch.dtype) -> int:
        return estimate_bytes(config, batch, prompt, dtype, keep=self.count(prompt), new=max(1, new))

    def attend(self, call: AttentionCall) -> torch.Tensor | None:
        if call.evicted is None:
            return None
        call.run.engaged.add(self.name)
        return torch.cat([_attend(part) for part in call.by_heads()], 1)

    def after(self, call: AttentionCall) -> None:
        """Reduce the layer to the budget, if this call was a prompt."""
        layer = call.cached
        if not isinstance(layer, EvictingLayer) or call.queries == 1:
            return
        guesses = call.run.behind_prompt(layer.total)
        if guesses >= call.queries:
            return
        parts = [_asking(_aligned(part), guesses) for part in call.by_heads()]
        for part, shares in zip(parts, _shares(parts), strict=True):
            self._settle(part, shares)
        if isinstance(layer, RaggedLayer) and layer.heads:
            layer.follow()

    def _settle(self, call: AttentionCall, shares: list[float]) -> None:
        """After a prompt or another turn, reduce some heads to the budget, times a factor for each row."""
        turns = self._turns(call)
        if not any(turns):
            return
        if call.starts is None:
            call.run.warn("CompressKV kept everything: the mask is more than causal with padding on the left")
            return
        layer: EvictingLayer = call.cached
        if not layer.evicted:
            layer.hidden = list(call.starts)
        counts = [
            max(2, int(self.count(_seen(call) - hidden) * share)) if turn else call.keys
            for hidden, share, turn in zip(layer.hidden, shares, turns, strict=True)
        ]
        self._compress(call, layer, call.starts, counts)

    def _turns(self, call: AttentionCall) -> list[bool]:
        """Which rows get a prompt or another turn in this call, and not just a few tokens beside padding."""
        few, rows = self.window or FEW_QUERIES, len(call.key)
        first = _seen(call) - call.queries
        if first == 0 or call.queries <= few:
            return [first == 0] * rows
        new = (call.cached.positions[:, 0, : call.keys] >= first).sum(1).tolist()
        return [count > few for count in new]

    def _compress(self, call: AttentionCall, layer: EvictingLayer, starts: list[int], counts: list[int]) -> None:
        """Keep so many tokens of each row."""
        if all(count >= call.keys - start for count, start in zip(counts, starts, strict=True)):
            return
        kept = call.key.new_full((*call.key.shape[:2], layer.length), -1, dtype=torch.int32)
        guesses = torch.arange(call.keys, layer.length, device=kept.device)
        kept[:, :, call.keys :] = guesses  # they may be taken back
        for first, last in runs(list(zip(starts, counts, strict=True))):
            visual = None if layer.evicted else _visual(call, (first, last), starts[first])
            token_idx = self._choose(call, (first, last), starts[first], counts[first], visual)
            kept[first:last, :, : token_idx.shape[2]] = token_idx
        layer.keep(kept)
        call.run.engaged.add(self.name)

    def _choose(
        self, call: AttentionCall, rows: tuple[int, int], start: int, count: int, visual: Visual | None
    ) -> torch.Tensor:
        """Slots to keep of some rows, -1 for none."""
        query, key, _ = call.part(rows, start, max(0, start - call.keys + call.queries))
        if count >= key.shape[2]:
            slots = torch.arange(start, call.keys, dtype=torch.int32, device=key.device)
            return slots.expand(*key.shape[:2], -1)
        if self.window is not None and self.window > count // 2 and self.policy in VOTERS:
            call.run.warn(f"CompressKV: of window={self.window}, {count // 2} vote, half of the {count} tokens kept")
        voters = query[:, :, -(self.window or FEW_QUERIES) :]
        votes = self._votes(key.shape[1], count)
        token_idx = COMPRESS[self.policy](voters, key, count=count, visual=visual, scale=call.scaling, **votes)
        return torch.where(token_idx < 0, -1, token_idx + start)

    def _votes(self, heads: int, count: int) -> dict[str, Any]:
        """Arguments of a policy beyond its defaults; a single head shares its budget with no other."""
        if self.policy not in VOTERS:
            return {}
        asked: dict[str, Any] = {"window": self.window, "kernel": self.kernel}
        if self.policy == "snap_kv":
            kernel = KERNEL if self.kernel is None else self.kernel
            asked |= {"recent": self._newest(count), "kernel": kernel, "head_budgets": self.head_budgets and heads > 1}
        return {name: value for name, value in asked.items() if value is not None and value is not False}

    def _newest(self, count: int) -> int:
        """How many of the tokens kept are the newest; by default votes choose two surroundings at least, or half."""
        if self.recent is not None:
            return int(self.recent * count)
        return min(int(RECENT * count), max(count // 2, count - 2 * KERNEL))

    def idle(self, run: GenerateRun) -> str:
        return "no prompt had more tokens than are kept"


def _attend(call: AttentionCall) -> torch.Tensor:
    """Attention to what some heads have kept."""
    layer, heads = call.cached, call.query.shape[1]
    if call.starts is not None and call.queries <= FEW_QUERIES:
        pairs = sum(causal_pairs(call.queries, call.keys - start) for start in call.starts)
        call.count_pairs(heads * pairs)
        return call.by_rows(lambda query, key, value, _: call.verify(query, key, value))
    visible = _visible(layer, call.queries)
    call.count_pairs(visible.sum() * (heads // call.key.shape[1]))
    return _masked(call, visible)


def _aligned(call: AttentionCall) -> AttentionCall:
    """A call once gaps in its cache layer are closed, which padding of a later turn left."""
    layer = call.cached
    if not layer.evicted or layer.starts is not None or not any(layer.hidden):
        return call
    layer.align()
    return call.reading(layer, call.query)


def _asking(call: AttentionCall, guesses: int) -> AttentionCall:
    """A call without the guesses at its end."""
    query, key, value = (x[:, :, : x.shape[2] - guesses] for x in (call.query, call.key, call.value))
    return replace(call, query=query, key=key, value=value)


def _seen(call: AttentionCall) -> int:
    """Tokens of the sequence up to the end of a call, from which guesses may have been cut."""
    total: int = call.cached.total
    return total - call.cached.length + call.keys


def _shares(parts: list[AttentionCall]) -> list[list[float]]:
    """For each separately stored head, its number of tokens in each row, relative to the mean of all heads."""
    held = [[part.keys - start for start in part.starts or [0] * len(part.key)] for part in parts]
    means = [max(1.0, sum(row) / len(parts)) for row in zip(*held, strict=True)]
    return [[count / mean for count, mean in zip(row, means, strict=True)] for row in held]


def _visual(call: AttentionCall, rows: tuple[int, int], start: int) -> Visual | None:
    """The visual tokens of some rows, in slots after `start`; each row of a prompt may have become several beams."""
    known, batch = call.run.visual, call.query.shape[0]
    if not known or batch % len(known):
        return None
    found = [known[row * len(known) // batch] for row in range(*rows)]
    if any(span.first < start or span.end > call.keys for spans in found for span in spans):
        return None  # a chunk of the prompt, with pictures that are not all there
    return [[span._replace(first=span.first - start) for span in spans] for spans in found]


def _visible(layer: EvictingLayer, queries: int) -> torch.Tensor:
    """Which slots the newest queries see, bool `[B, Hkv, M, S]`."""
    assert layer.positions is not None
    position = layer.positions[:, :, None, : layer.length]
    newest = torch.arange(layer.total - queries, layer.total, device=position.device)
    return (position >= 0) & (position <= newest[:, None])


def _masked(call: AttentionCall, visible: torch.Tensor) -> torch.Tensor:
    """Attention under a mask of each key head, which its query heads share: one for each would take many gigabytes."""
    batch, heads = call.key.shape[:2]
    query = call.query.unflatten(1, (heads, -1)).flatten(0, 1)
    key, value = (x.flatten(0, 1)[:, None].expand(-1, query.shape[1], -1, -1) for x in (call.key, call.value))
    output = scaled_dot_product_attention(query, key, value, visible.flatten(0, 1)[:, None], scale=call.scaling)
    return output.unflatten(0, (batch, heads)).flatten(1, 2)
