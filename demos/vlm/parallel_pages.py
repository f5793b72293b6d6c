"""APE's join of pages that were encoded alone: all at the same positions, at another temperature; not shipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache

from mmaccel import private
from mmaccel.cache.argument import cached

State = tuple[torch.Tensor, torch.Tensor]  # keys and values of one layer, `[1, heads, tokens, dim]`
NAME = "parallel_pages"


class ParallelPages:
    """Pages that are encoded behind the same words and do not see each other (APE, Yang et al., 2025).

    Parameters
    ----------
    model
        A decoder of transformers.
    temperature
        That logits of pages are divided by.
    scale
        Of the weight that all pages have together, as a power.
    """

    def __init__(self, model: Any, temperature: float, scale: float) -> None:
        self.model, self.temperature, self.scale = model, temperature, scale
        self.known: dict[tuple[int, ...], list[State]] = {}
        self.pages = slice(0, 0)

    def join(self, ids: torch.Tensor, spans: list[tuple[int, int]]) -> dict[str, Any]:
        """Arguments of `generate` for a prompt `[1, L]` whose pages end where the spans do."""
        self.pages = slice(0, 0)  # pages are encoded as the model does
        starts = [spans[0][0], *(stop for _, stop in spans[:-1])]
        bounds = list(zip(starts, (stop for _, stop in spans), strict=True))
        first, last = starts[0], spans[-1][1]
        head = self._states(ids[:, :first], 0)
        parts = [head, *(self._states(torch.cat([ids[:, :first], ids[:, a:b]], 1), first) for a, b in bounds)]
        cache = DynamicCache(config=self.model.config)
        for layer, pairs in enumerate(zip(*parts, strict=True)):
            keys, values = (torch.cat(kind, 2) for kind in zip(*pairs, strict=True))
            cache.update(keys, values, layer)
        self.pages = slice(first, last)
        positions = torch.arange(ids.shape[1])[None] - last + first + max(b - a for a, b in bounds)
        mask = torch.ones_like(ids)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **cached(cache)}

    @torch.no_grad()
    def _states(self, ids: torch.Tensor, behind: int) -> list[State]:
        """What is kept of some words behind others."""
        key = tuple(ids[0].tolist())
        if key not in self.known:
            cache = DynamicCache(config=self.model.config)
            self.model.get_decoder()(input_ids=ids, **cached(cache), use_cache=True)
            layers: list[Any] = list(cache.layers)
            self.known[key] = [(layer.keys[:, :, behind:], layer.values[:, :, behind:]) for layer in layers]
        return self.known[key]

    @contextmanager
    def on(self) -> Iterator[None]:
        """Let the model attend as APE does."""
        before = self.model.config._attn_implementation
        private.register_attention(NAME, self.attend)
        self.model.set_attn_implementation(NAME)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)
            private.unregister_attention(NAME)

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **more: Any
    ) -> tuple[torch.Tensor, None]:
        """Attention of `[B, H, M, E]`, the newest M of N tokens."""
        groups, (new, seen) = query.shape[1] // key.shape[1], (query.shape[2], key.shape[2])
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        logits = query @ key.mT * more["scaling"]
        later = torch.ones(new, seen, dtype=torch.bool).triu(seen - new + 1)
        weights = self.softened(logits.masked_fill(later, -torch.inf)).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), None

    def softened(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits `[..., N]` with those of the pages changed."""
        before, pages, after = logits.tensor_split([self.pages.start, self.pages.stop], -1)
        pages = pages / self.temperature
        return torch.cat([before, pages + (self.scale - 1) * pages.logsumexp(-1, keepdim=True), after], -1)
