"""One call of a decoder layer's attention, as the methods see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmaccel import kernels
from mmaccel.cache import EvictingLayer, RaggedLayer
from mmaccel.kernels.policies import Visual

from .rows import causal_pairs, runs

FEW_QUERIES = 32  # what `kernels.verify_attention` is made for; more is a prompt

# `(query, key, value, (first, last) row) -> output`, all of some rows, padding cut off
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, int]], torch.Tensor]


class Sum:
    """A sum of numbers and one-element tensors, which are read back from their devices once, at the end."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def add(self, value: Any) -> None:
        device = str(value.device) if isinstance(value, torch.Tensor) else ""
        self._parts[device] = self._parts.get(device, 0) + value

    def read(self) -> int:
        return sum(int(part) for part in self._parts.values())


@dataclass
class GenerateRun:
    """The work of one call of `generate`, for the report, and the layout of its prompt.

    Attributes
    ----------
    watch
        Called after each layer has attended, or None.
    visual
        A list of :class:`mmaccel.kernels.policies.Span` for each row of the batch, in slots of the prompt with its
        padding; None if unknown.
    unsuited
        Reasons why some layers ran plainly, each of which is told once.
    guessing
        The setting by which guesses come with the first pass, behind the prompt; None without any.
    prompt
        Tokens of the prompt with its padding, where guesses come behind it; None elsewhere.
    drops, kept
        The shares of the prompt to keep after some layers, and the tokens that later layers get, fewer from one to the
        next; none as long as that is all.
    """

    engaged: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    unsuited: set[str] = field(default_factory=set)
    keys: Sum = field(default_factory=Sum)
    plain_keys: Sum = field(default_factory=Sum)
    plan_bytes: int = 0
    watch: Callable[[AttentionCall], None] | None = None
    visual: Visual | None = None
    guessing: str | None = None
    prompt: int | None = None
    drops: dict[int, float] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def behind_prompt(self, total: int) -> int:
        """How many of so many tokens are guesses, or an answer with guesses."""
        return 0 if self.prompt is None else max(0, total - self.prompt)

    def kept_at(self, layer: int) -> Any:
        """Those that a layer gets, None for all."""
        return next((kept for kept in reversed(self.kept) if layer > kept.last), None)


@dataclass
class AttentionCall:
    """The tensors of one attention call.

    Attributes
    ----------
    layer_idx
        Number of the decoder layer.
    query : `[B, Hq, M, D]`, key, value : `[B, Hkv, N, D]`
        The queries are the last `M` tokens.
    mask
        As transformers made it.
    scaling
        Factor of the scores, None for ``D ** -0.5``.
    cached
        Our cache layer that the keys came from, or None.
    starts
        The first key of each row that is not padding; None where the mask is more than causal with padding
        on the left, or heads differ.
    plain
        Runs transformers' own attention.
    run
        The call of `generate` that this belongs to; a throw-away one for a direct call of the model.
    """

    layer_idx: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float | None
    cached: Any
    starts: list[int] | None
    plain: Callable[[], torch.Tensor]
    run: GenerateRun

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        return self.key.shape[2]

    @property
    def evicted(self) -> EvictingLayer | None:
        """The cache layer, if tokens were dropped from it."""
        return self.cached if isinstance(self.cached, EvictingLayer) and self.cached.evicted else None

    def by_heads(self) -> list[AttentionCall]:
        """One call for each key head if the cache layer stores heads separately, else this one."""
        if not isinstance(self.cached, RaggedLayer) or not self.cached.heads:
            return [self]
        queries = self.query.chunk(len(self.cached.heads), 1)
        return [self.reading(head, query) for head, query in zip(self.cached.heads, queries, strict=True)]

    def reading(self, layer: EvictingLayer, query: torch.Tensor) -> AttentionCall:
        """The same call of some queries, with what a cache layer holds now."""
        assert layer.keys is not None and layer.values is not None
        key, value = layer.keys[:, :, : layer.length], layer.values[:, :, : layer.length]
        return replace(self, query=query, key=key, value=value, cached=layer, starts=layer.starts)

    def pieces(self) -> list[tuple[tuple[int, int], int, int]]:
        """Runs of rows with equal padding: rows, and their first key and first query that are not padding."""
        assert self.starts is not None
        return [
            ((first, last), self.starts[first], max(0, self.starts[first] - self.keys + self.queries))
            for first, last in runs(self.starts)
        ]

    def by_rows(self, attend: Attend) -> torch.Tensor:
        """Attention of each run of rows on its own, so that padding has no effect; `[B, Hq, M, D]`."""
        pieces = self.pieces()
        if len(pieces) == 1 and pieces[0][2] == 0:
            return attend(*self.part(*pieces[0]), pieces[0][0])
        output = torch.zeros_like(self.query, memory_format=torch.contiguous_format)
        for rows, start, query_start in pieces:
            if query_start < self.queries:
                output[slice(*rows), :, query_start:] = attend(*self.part(rows, start, query_start), rows)
        return output

    def part(
        self, rows: tuple[int, int], start: int, query_start: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of some rows without their padding, as views."""
        batch = slice(*rows)
        return self.query[batch, :, query_start:], self.key[batch, :, start:], self.value[batch, :, start:]

    def verify(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        token_idx: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of a few newest queries to all keys, or to chosen ones."""
        lengths = torch.full((key.shape[0],), key.shape[2], dtype=torch.int32, device=key.device)
        return kernels.verify_attention(query, key, value, lengths, token_idx, scale=self.scaling)[0]

    def count_pairs(self, pairs: Any = None) -> None:
        """Report `pairs` (with all heads) as attended to; None for as many as in plain attention."""
        plain = self.plain_pairs()
        self.run.plain_keys.add(plain)
        self.run.keys.add(plain if pairs is None else pairs)

    def plain_pairs(self) -> Any:
        """Pairs of query and key that plain attention without any method computes, all heads counted."""
        heads = self.query.shape[1]
        if self.evicted is not None:
            lengths = [self.evicted.total - hidden for hidden in self.evicted.hidden]
            return heads * sum(causal_pairs(self.queries, length) for length in lengths)
        if self.starts is not None:
            return heads * sum(causal_pairs(self.queries, self.keys - start) for start in self.starts)
        if self.mask is None:
            keys = self.keys if self.queries == 1 else self.queries  # of more, the kernel's own mask shows the first
            return heads * self.query.shape[0] * causal_pairs(self.queries, keys)
        seen = self.mask if self.mask.dtype == torch.bool else self.mask == 0
        return seen.sum() * (self.query.shape[0] * heads // seen.shape[:2].numel())
