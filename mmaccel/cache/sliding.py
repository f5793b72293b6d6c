"""A cache of the last tokens of an endless stream."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .layers import check_crop, layer_bytes


class SlidingLayer(CacheLayerMixin):
    """Keys and values of the first `sink` and the last `window` tokens of a stream, one buffer each."""

    is_sliding = False  # its masks follow from `get_mask_sizes`, like those of a full-attention layer
    is_croppable = False

    def __init__(self, window: int, sink: int) -> None:
        super().__init__()
        self.window, self.sink = window, sink
        self.length = self.total = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (x.new_empty(*x.shape[:2], 0, x.shape[-1]) for x in (key_states, value_states))
        self.is_initialized = True

    @property
    def kept(self) -> int:
        """Tokens that the next chunk will see before itself."""
        return min(self.total, self.sink + self.window)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append a chunk and return what it may attend to, as views: sink, window, and the chunk itself."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._slide()
        new = key_states.shape[-2]
        end = self.length + new
        self._reserve(end)
        assert self.keys is not None and self.values is not None
        self.keys[:, :, self.length : end], self.values[:, :, self.length : end] = key_states, value_states
        self.length, self.total = end, self.total + new
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _slide(self) -> None:
        """Move the window to the front; done late, since the views that were returned must stay as they are."""
        over = self.length - self.sink - self.window
        if over <= 0:
            return
        assert self.keys is not None and self.values is not None
        for buffer in (self.keys, self.values):
            newest = buffer[:, :, self.sink + over : self.length].clone()  # the two places may overlap
            buffer[:, :, self.sink : self.sink + self.window] = newest
        self.length = self.sink + self.window

    def _reserve(self, length: int) -> None:
        assert self.keys is not None and self.values is not None
        more = max(length, self.sink + self.window) - self.keys.shape[2]
        if more > 0:
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, more))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, more))

    def numbers(self) -> list[int]:
        """Which tokens of the stream the last :meth:`update` returned."""
        first = list(range(min(self.sink, self.total)))
        rest = self.length - len(first)
        return first + list(range(self.total - rest, self.total))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.kept + query_length, self.total - self.kept

    def get_seq_length(self) -> int:
        """Tokens seen, dropped ones included: positions go on from here."""
        return self.total

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        super().reset()
        self.length = self.total = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the newest tokens, as long as none was dropped.

        Raises
        ------
        ValueError
            Once the window has moved: what it held before is gone.
        """
        count = min(check_crop(tokens_to_remove), self.total)
        if count and self.length < self.total:
            raise ValueError(f"cannot take back {count} tokens: the window has moved on; start the stream again")
        self.length, self.total = self.length - count, self.total - count

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[indices], self.values[indices]


class SlidingCache(Cache):
    """Keys and values of the last `window` tokens, for encoders and decoders that run on a stream.

    A chunk attends to itself, to the `window` tokens before it and to the first `sink` tokens of the stream
    (attention sinks of StreamingLLM, 2023). Memory does not grow with the stream. Exact for models that were
    trained with such a window.

    Parameters
    ----------
    layers
        Attention layers of the model, or its configuration.
    window
        Tokens before a chunk that it sees.
    sink
        First tokens of the stream that all chunks see, default 0.

    Raises
    ------
    ValueError
        If `window` is below 1, or `sink` or the number of layers is out of range.

    Examples
    --------
    >>> cache = SlidingCache(2, window=3)
    >>> for _ in range(3):
    ...     keys, values = cache.update(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), 0)
    >>> keys.shape[2], cache.positions()
    (5, [1, 2, 3, 4, 5])
    """

    def __init__(self, layers: Any, window: int, sink: int = 0) -> None:
        if not isinstance(layers, int):
            layers = layers.get_text_config(decoder=True).num_hidden_layers
        for name, value, least in (("layers", layers, 1), ("window", window, 1), ("sink", sink, 0)):
            if value < least:
                raise ValueError(f"SlidingCache({name}={value}): {name} must be at least {least}")
        self.window, self.sink = window, sink
        super().__init__(layers=[SlidingLayer(window, sink) for _ in range(layers)])

    def positions(self, layer_idx: int = 0) -> list[int]:
        """Which tokens of the stream the last update of a layer returned."""
        return self.layers[layer_idx].numbers()  # type: ignore[no-any-return, union-attr]

    def nbytes(self) -> int:
        """Bytes allocated for keys and values, by count."""
        return layer_bytes(self.layers)
