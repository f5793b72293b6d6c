"""A preallocated key/value cache whose rollback is a pointer move.

`DynamicCache` of transformers copies the whole cache at every step and `StaticCache` cannot be cropped.
This one writes into buffers that are allocated once (and grow by a quarter when full), so that taking back rejected
drafts costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .layers import check_crop, layer_bytes, writable

GROWTH = 256  # slots that a cache starts with by default, and fewest that it grows by


@dataclass
class Writing:
    """Where the layers of a cache write; not in the cache itself, which would be freed late if its layers held it.

    Attributes
    ----------
    initial
        Slots that a layer starts with.
    slots : int64 `[batch, width]` or None
        Where each row of the next forward goes; None for behind all others.
    extent
        Slots that it attends to then.
    """

    initial: int
    slots: torch.Tensor | None = None
    extent: int = 0


class RollbackLayer(CacheLayerMixin):
    """Keys and values of one full-attention layer, `[batch, heads, capacity, head_dim]`."""

    is_sliding = False
    is_croppable = True

    def __init__(self, writing: Writing) -> None:
        super().__init__()
        self.writing = writing
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        initial = self.writing.initial
        self.keys = key_states.new_zeros(*key_states.shape[:2], initial, key_states.shape[-1])
        # of the keys' type: under autocast rotated keys are float32, and values are not
        self.values = key_states.new_zeros(*value_states.shape[:2], initial, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new states and return all that may be attended to, as views `[batch, heads, length, head_dim]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        slots = self.writing.slots
        if slots is None:
            end = self.length + key_states.shape[-2]
            self._reserve(end)
            self.keys[:, :, self.length : end] = key_states
            self.values[:, :, self.length : end] = value_states
        else:
            end, slots = self.writing.extent, slots.to(key_states.device)  # layers may be on several devices
            self._reserve(end)
            rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
            # advanced indices around a slice put the indexed axes first: [batch, width, heads, head_dim]
            self.keys[rows, :, slots] = key_states.transpose(1, 2).to(self.keys.dtype)
            self.values[rows, :, slots] = value_states.transpose(1, 2).to(self.values.dtype)
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _reserve(self, length: int) -> None:
        assert self.keys is not None and self.values is not None
        self.keys, self.values = writable(self.keys), writable(self.values)
        capacity = self.keys.shape[2]
        if length <= capacity:
            return
        more = length + max(GROWTH, length // 4) - capacity
        self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, more))
        self.values = torch.nn.functional.pad(self.values, (0, 0, 0, more))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        super().reset()
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Move the pointer back by `-tokens_to_remove`, the sign that transformers uses."""
        self.length = max(0, self.length - check_crop(tokens_to_remove))

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[indices], self.values[indices]


class RollbackCache(Cache):
    """A preallocated cache with free rollback, for `generate` of any full-attention transformers model.

    Two ways to write. By default states are appended at a pointer, and :meth:`crop` moves it back. With
    :meth:`place`, each row of the next forward writes to slots of its own, so that rows of a batch can be at
    different lengths; the caller then passes the attention mask.

    Parameters
    ----------
    config
        The model's configuration; its number of layers is read from it.
    capacity
        Slots to allocate at first, 256 by default; it grows by a quarter when full.

    Exact: the model sees the same keys and values as with `DynamicCache`.

    Raises
    ------
    ValueError
        If `crop` gets a positive count.

    Examples
    --------
    >>> cache = RollbackCache(model.config, capacity=1024)  # doctest: +SKIP
    >>> model.generate(**inputs, past_key_values=cache)  # doctest: +SKIP
    """

    def __init__(self, config: Any, capacity: int = GROWTH) -> None:
        self.writing = Writing(capacity)
        text = config.get_text_config(decoder=True)
        super().__init__(layers=[RollbackLayer(self.writing) for _ in range(text.num_hidden_layers)])
        self.layers: list[Any]  # all of one kind here: `RollbackLayer`

    @property
    def length(self) -> int:
        """Slots in use."""
        return self.get_seq_length()

    def place(self, slots: torch.Tensor, extent: int) -> None:
        """Make the next forwards write row `b` to `slots[b]` (`[batch, width]`) and attend to `[0, extent)`."""
        self.writing.slots, self.writing.extent = slots, extent

    def append(self) -> None:
        """Go back to writing at the pointer."""
        self.writing.slots = None

    def seek(self, length: int) -> None:
        """Put the pointer anywhere within what was allocated, also ahead, over slots written by :meth:`place`."""
        for layer in self.layers:
            layer.length = length

    def nbytes(self) -> int:
        """Bytes allocated for keys and values, by count."""
        return layer_bytes(self.layers)
