"""A cache that keeps everything, and lets a policy choose at every step what is attended to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .layers import AttentionReader, ReadByAttention, cache_layers
from .rollback import GROWTH, RollbackCache, RollbackLayer, Writing

# `(q, k, lengths, *, count, state, scale) -> token_idx`, as in mmaccel.kernels.policies.DECODE
Policy = Callable[..., torch.Tensor]


@dataclass
class SelectingState:
    """What the layers of one cache have in common; no reference to them, so that memory is freed at once."""

    policy: Policy
    reader: AttentionReader | None = None


class SelectingLayer(RollbackLayer):
    """Keys and values of one layer, and what the policy remembers of its sequences.

    Attributes
    ----------
    current
        What the last :meth:`update` returned as keys; attention that gets this very tensor reads this layer.
    states
        The policy's memory, one dictionary for each group of rows that it is asked for together.
    """

    def __init__(self, writing: Writing, shared: SelectingState) -> None:
        super().__init__(writing)
        self.shared = shared
        self.current: torch.Tensor | None = None
        self.states: dict[Any, dict[str, Any]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        self.current = keys
        if self.shared.reader is not None:
            self.shared.reader.updated(self)
        return keys, values

    def state(self, rows: tuple[int, ...]) -> dict[str, Any]:
        """The policy's memory of these rows of the batch."""
        return self.states.setdefault(rows, {})

    def choose(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        count: int,
        rows: tuple[int, ...],
        scale: float | None = None,
    ) -> torch.Tensor:
        """Ask the policy for `count` tokens of these rows.

        Parameters
        ----------
        query : `[b, Hq, M, D]`, keys : `[b, Hkv, N, D]`
            The newest queries of the rows, and all their keys, padding cut off.
        rows
            Their numbers in the batch: what the policy remembers belongs to them.
        scale
            Of the model's scores, None for ``D ** -0.5``.

        Returns
        -------
        int32 `[b, Hkv, S]`, ascending, -1 last.
        """
        lengths = torch.full((keys.shape[0],), keys.shape[2], dtype=torch.int32, device=keys.device)
        return self.shared.policy(query, keys, lengths, count=count, state=self.state(rows), scale=scale)

    # What the policy remembers holds for the rows and tokens that it saw.

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if tokens_to_remove:  # `generate` takes back no token too, after each step on Apple's GPUs
            self.states.clear()

    def reset(self) -> None:
        super().reset()
        self.states.clear()
        self.current = None

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        found = {rows: _reordered(state, rows, beam_idx) for rows, state in self.states.items()}
        self.states = {rows: state for rows, state in found.items() if state}

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.states.clear()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self.states.clear()


def _reordered(state: dict[str, Any], rows: tuple[int, ...], beams: torch.Tensor) -> dict[str, Any]:
    """What a policy remembers of some rows, once each goes on from the beam with the given number; {} if of others."""
    sources = beams[list(rows)].cpu() - rows[0]
    if bool((sources < 0).any()) or bool((sources >= len(rows)).any()):
        return {}
    return {
        name: value.index_select(0, sources.to(value.device)) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


class SelectingCache(ReadByAttention, RollbackCache):
    """All keys and values in preallocated buffers, with a policy that chooses tokens at every step.

    By itself it is as exact as `DynamicCache`: the choice is made by :meth:`SelectingLayer.choose`, which
    the attention of a method calls.

    Parameters
    ----------
    config
        The model's configuration. Only its full-attention layers select; the others keep transformers' layers.
    policy
        A function of :data:`mmaccel.kernels.policies.DECODE`.
    expected
        Tokens to allocate for at first, 256 by default; the buffers grow by a quarter when full.

    Raises
    ------
    ValueError
        If `crop` gets a positive count.

    Examples
    --------
    >>> from mmaccel.kernels import policies
    >>> cache = SelectingCache(model.config, policies.DECODE["token_select"])  # doctest: +SKIP
    >>> model.generate(**inputs, past_key_values=cache)  # doctest: +SKIP
    """

    def __init__(self, config: Any, policy: Policy, expected: int = GROWTH) -> None:
        super().__init__(config, expected)
        self.shared = SelectingState(policy)
        self.layers = cache_layers(config, lambda: SelectingLayer(self.writing, self.shared))
