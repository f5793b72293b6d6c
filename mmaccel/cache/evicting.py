"""A cache that drops all but the chosen tokens of a prompt, and counts positions as if it had not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin

from .layers import AttentionReader, ReadByAttention, cache_layers, check_crop, layer_bytes, writable

ROOM = 256  # slots for new tokens that are allocated with the kept ones


@dataclass
class EvictingState:
    """What the layers of one cache have in common; no reference to them, so that memory is freed at once."""

    room: int
    reader: AttentionReader | None = None
    allocated: int = 0
    peak: int = 0


class EvictingLayer(CacheLayerMixin):
    """Keys and values of one layer, those kept at the right of the slots in use, unused slots before them.

    Attributes
    ----------
    positions : int32 `[batch, heads, capacity]`
        Which token of the sequence a slot holds, padding included in the count; -1 for none.
    length, total
        Slots in use, and tokens seen.
    appended
        Newest slots that hold the newest tokens in all rows and heads: those that `crop` can take back.
    evicted
        Whether tokens were dropped.
    starts : list of int or None
        The first slot of each row that holds a token, None where heads differ or there are gaps.
    hidden : list of int
        Tokens of each row that are padding.
    current
        What the last :meth:`update` returned as keys; attention that gets this very tensor reads this layer.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, shared: EvictingState) -> None:
        super().__init__()
        self.shared = shared
        self.bytes = 0
        self._clear()

    def _clear(self) -> None:
        self.keys = self.values = None
        self.positions: torch.Tensor | None = None
        self.current: torch.Tensor | None = None
        self.is_initialized = self.evicted = False
        self.length = self.total = self.appended = 0
        self.starts: list[int] | None = []
        self.hidden: list[int] = []
        self._note()

    def _note(self) -> None:
        """Update the count of bytes and its peak."""
        before, self.bytes = self.bytes, layer_bytes([self])
        self.shared.allocated += self.bytes - before
        self.shared.peak = max(self.shared.peak, self.shared.allocated)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.positions = torch.empty(*key_states.shape[:2], 0, dtype=torch.int32, device=self.device)
        self.starts, self.hidden = [0] * key_states.shape[0], [0] * key_states.shape[0]
        self.is_initialized = True

    @property
    def valid(self) -> torch.Tensor:
        """Slots in use that hold a token, bool `[batch, heads, length]`."""
        assert self.positions is not None
        return self.positions[:, :, : self.length] >= 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new states and return all slots in use, as views `[batch, heads, length, head_dim]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        value_states = value_states.to(key_states.dtype)  # under autocast rotated keys are float32, and values are not
        self._refuse_unmasked()
        new = key_states.shape[-2]
        if self.length == 0:  # a prompt: kept as it came until the tokens to keep are known
            self.keys, self.values = key_states, value_states
            self.positions = self._numbers(new).contiguous()
        else:
            self._append(key_states, value_states)
        self.length, self.total, self.appended = self.length + new, self.total + new, self.appended + new
        assert self.keys is not None and self.values is not None
        self.current = self.keys[:, :, : self.length]
        self._note()
        if self.shared.reader is not None:
            self.shared.reader.updated(self)
        return self.current, self.values[:, :, : self.length]

    def _refuse_unmasked(self) -> None:
        """Without attention that reads this layer, all rows and heads must have the same number of tokens."""
        uneven = self.starts is None or any(self.starts)
        reader = self.shared.reader
        if self.evicted and uneven and (reader is None or not reader.active):
            raise ValueError(
                "the rows or heads of this EvictingCache keep different numbers of tokens, which ordinary"
                " attention cannot handle: use it within the session that made it, with attn_implementation='sdpa'"
            )

    def _append(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        assert self.keys is not None and self.values is not None and self.positions is not None
        self.keys, self.values, self.positions = map(writable, (self.keys, self.values, self.positions))
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[2]:
            more = end + max(self.shared.room, end // 4) - self.keys.shape[2]
            self.keys, self.values = pad(self.keys, (0, 0, 0, more)), pad(self.values, (0, 0, 0, more))
            self.positions = pad(self.positions, (0, more), value=-1)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.positions[:, :, self.length : end] = self._numbers(end - self.length)

    def _numbers(self, new: int) -> torch.Tensor:
        assert self.keys is not None
        numbers = torch.arange(self.total, self.total + new, dtype=torch.int32, device=self.keys.device)
        return numbers.expand(*self.keys.shape[:2], -1)

    def hide(self, seen: torch.Tensor) -> None:
        """Mark newest tokens as padding where `seen [batch, count]` is False; some may be padding already."""
        assert self.positions is not None
        newest = self.positions[:, :, self.length - seen.shape[1] : self.length]
        padding = ~seen & (newest[:, 0] >= 0)
        newest.masked_fill_(padding[:, None], -1)
        for row, hidden in enumerate(padding.sum(1).tolist()):
            self.hidden[row] += hidden
        self._find_starts()

    def keep(self, token_idx: torch.Tensor) -> None:
        """Drop all tokens but these; later ones are appended as before.

        Parameters
        ----------
        token_idx : int `[batch, heads, S]`
            Slots in use, -1 for none; heads and rows may keep different numbers.
        """
        assert self.keys is not None and self.values is not None and self.positions is not None
        chosen = token_idx.long().sort(-1).values  # unused places come first: tokens lie at the right
        width = int((chosen >= 0).sum(-1).max())
        chosen = chosen[..., chosen.shape[-1] - width :]
        none, index = chosen < 0, chosen.clamp(min=0)
        room = self.shared.room
        taken = []
        for old in (self.keys, self.values):
            states = old.gather(2, index[..., None].expand(-1, -1, -1, old.shape[-1]))
            taken.append(pad(states.masked_fill_(none[..., None], 0), (0, 0, 0, room)))
        positions = pad(self.positions.gather(2, index).masked_fill_(none, -1), (0, room), value=-1)
        # for a moment there is what was and what is kept
        self.shared.peak = max(self.shared.peak, self.shared.allocated + sum(new.nbytes for new in (*taken, positions)))
        (self.keys, self.values), self.positions = taken, positions
        # newest tokens that all rows and heads kept can still be taken back
        newest = torch.arange(self.length - width, self.length, device=chosen.device)
        alike = (chosen == newest).all(0).all(0)  # ascending numbers: from the first that is alike on all are
        self.appended = min(self.appended, int(alike.sum()))
        self.length, self.evicted, self.current = width, True, None
        self._find_starts()
        self._note()

    def align(self) -> None:
        """Close gaps that :meth:`hide` left, so that tokens lie at the right again."""
        slots = torch.arange(self.length, device=self.valid.device)
        self.keep(torch.where(self.valid, slots, -1))

    def _find_starts(self) -> None:
        valid = self.valid
        count = valid.sum(-1)
        first = self.length - count
        slots = torch.arange(self.length, device=valid.device)
        fits = bool((valid == (slots >= first[..., None])).all()) and bool((count == count[:, :1]).all())
        self.starts = first[:, 0].tolist() if fits else None

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # New tokens keep their numbers, and kept ones get numbers before them: causal masks come out right.
        return self.length + query_length, self.total - self.length

    def get_seq_length(self) -> int:
        """Tokens seen, dropped ones included: positions go on from here."""
        return self.total

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self._clear()

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the newest `-tokens_to_remove` tokens.

        Raises
        ------
        ValueError
            If that would reach into a prompt that has lost tokens.
        """
        count = min(check_crop(tokens_to_remove), self.total)
        if self.evicted and count > self.appended:
            raise ValueError(
                f"cannot remove {count} tokens: only {self.appended} were added since others were dropped;"
                " make a new cache and run the prompt again"
            )
        self.length, self.total, self.appended = self.length - count, self.total - count, self.appended - count

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._take(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.keys is not None:
            rows = torch.arange(self.keys.shape[0], device=self.keys.device)
            self._take(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._take(indices)

    def _take(self, rows: torch.Tensor) -> None:
        if self.keys is None or self.values is None or self.positions is None:
            return
        rows = rows.to(self.keys.device)
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        self.positions, self.current = self.positions.index_select(0, rows), None
        self.hidden = _pick(self.hidden, rows)
        self.starts = None if self.starts is None else _pick(self.starts, rows)
        self._note()


def _pick(values: Sequence[int], rows: torch.Tensor) -> list[int]:
    if len(set(values)) == 1:  # the usual case, without reading back from the device
        return [values[0]] * len(rows)
    return [values[row] for row in rows.tolist()]


class EvictingCache(ReadByAttention, Cache):
    """A cache that keeps chosen tokens of a prompt per key head, and every token after it.

    :meth:`EvictingLayer.keep` drops the others. Lengths stay those of the whole sequence, so that rotary
    positions and causal masks go on as if nothing had been dropped. Exact until then.

    Parameters
    ----------
    config
        The model's configuration. Only its full-attention layers drop tokens; the others keep transformers'
        layers.
    room
        Slots for new tokens that are allocated with the kept ones, default 256; they grow when full.
    layer
        What a layer that drops tokens is: :class:`EvictingLayer` (default), whose heads take as much memory as the
        widest of them, or :class:`~mmaccel.cache.RaggedLayer`, which takes what they keep.

    By itself it stands in for any cache as long as all rows keep the same number of tokens. Rows of different
    lengths, and ragged layers, need attention that reads the layers; without such a reader the next forward raises
    a `ValueError`.

    Examples
    --------
    >>> cache = EvictingCache(model.config)  # doctest: +SKIP
    >>> model(**inputs, past_key_values=cache)  # doctest: +SKIP
    >>> for layer in cache.layers:  # doctest: +SKIP
    ...     layer.keep(token_idx)
    """

    def __init__(self, config: Any, room: int = ROOM, layer: type[EvictingLayer] = EvictingLayer) -> None:
        if room < 1:
            raise ValueError(f"EvictingCache(room={room}): room must be at least 1")
        self.shared = EvictingState(room)
        super().__init__(layers=cache_layers(config, lambda: layer(self.shared)))

    @property
    def peak(self) -> int:
        """The most bytes that the layers that drop tokens had allocated at a time."""
        return self.shared.peak

    def nbytes(self) -> int:
        """Bytes allocated for keys, values and positions, by count."""
        return layer_bytes(part for layer in self.layers for part in getattr(layer, "heads", None) or [layer])
