"""Take drafts back from the cache of texts that are read in step, whatever its layers keep of the past."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from mmaccel import private
from mmaccel.cache.argument import cached

# Layers with a state of the text so far, which cannot be cropped: linear attention and state spaces.
WITH_STATE = (
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)


def can_go_back(cache: DynamicCache) -> bool:
    """Whether drafts can be taken back from every layer; one with keys tells how many tokens there are."""
    layers: list[Any] = cache.layers
    counts = not layers or any(isinstance(layer, DynamicLayer) for layer in layers)
    return counts and all(type(layer) in WITH_STATE or (layer.is_croppable and _crops_all(layer)) for layer in layers)


def _crops_all(layer: Any) -> bool:
    """Whether what crops a layer knows all that an update adds: layers of DeepSeek-V4 keep more than they crop."""
    crops, adds = (
        next(place for place, cls in enumerate(type(layer).__mro__) if name in vars(cls)) for name in ("crop", "update")
    )
    return crops <= adds


def record_past(layers: list[Any], on: bool = True) -> None:
    """Let layers that forget what is out of their window keep it until the next crop, or not."""
    for layer in layers:
        if hasattr(layer, "record_past"):
            layer.record_past = on


class Rollback:
    """The cache of texts that are read in step: it holds equally many tokens of each, and grows by chains.

    Keys and values are cropped to what all texts have accepted. A state is put back as it was before the drafts, and
    with it the whole cache, so that all of the pass has to be read again.

    Parameters
    ----------
    cache
        That of the decoder itself, after the prompt.

    Attributes
    ----------
    held
        Tokens of each text that it holds, those of a prompt without ids not counted.
    """

    def __init__(self, cache: DynamicCache) -> None:
        self.held = 0
        self._layers: list[Any] = cache.layers
        self._stateful = [
            layer
            for layer in self._layers
            if isinstance(layer, LinearAttentionCacheLayerMixin) and not layer.is_croppable
        ]
        self._states: list[tuple[Any, dict[str, Any]]] = []  # before the last drafts
        self._record(True)

    @property
    def has_states(self) -> bool:
        """Whether drafts that are not all accepted have to be read again."""
        return bool(self._stateful)

    def recurrent_states(self) -> list[torch.Tensor | None]:
        """Of all layers that have them."""
        return [state for layer in self._stateful for state in layer.recurrent_states.values()]

    def mark(self, has_drafts: bool) -> None:
        """A pass follows, of which some tokens may have to be taken back."""
        self._states = [(layer, _copied(layer)) for layer in self._stateful] if has_drafts else []

    def keep(self, common: int, end: int) -> None:
        """Of the last pass, which reached up to `end`, keep what is right in all texts, up to `common`."""
        if common < end and self._states:
            for layer, states in self._states:
                vars(layer).update(states)
            common = self.held
        self._crop(end - common)
        self.held = common

    def _crop(self, count: int) -> None:
        for layer in self._layers:
            if layer not in self._stateful:
                layer.crop(-count)
            elif type(layer) is LinearAttentionAndFullAttentionLayer:
                DynamicLayer.crop(layer, -count)  # of its keys and values alone

    def close(self) -> None:
        """Layers forget again what is out of their window."""
        self._record(False)

    def _record(self, on: bool) -> None:
        record_past([layer for layer in self._layers if layer not in self._stateful], on)


def reads_on(model: Any, device: torch.device, rows: int) -> bool:
    """Whether a pass over several tokens begins at the states that the cache holds; tried with so many rows.

    That of Jamba begins at none, and RecurrentGemma keeps its own in its modules: there drafts would change the text.
    So two short passes are compared, one of them behind states of zeros.
    """
    decoder, cache = private.decoder_of(model), DynamicCache(config=model.config.get_text_config(decoder=True))
    ids = torch.arange(1, 5, device=device).expand(rows, -1)
    decoder(ids[:, :2], **cached(cache), use_cache=True)
    past = Rollback(cache)
    past.keep(2, 2)
    past.mark(True)
    found = decoder(ids[:, 2:], **cached(cache), use_cache=True)[0]
    past.keep(2, 4)
    cleared = [state.zero_() for state in past.recurrent_states() if state is not None]
    other = decoder(ids[:, 2:], **cached(cache), use_cache=True)[0]
    return not past.has_states or (bool(cleared) and not torch.equal(found, other))


def _copied(layer: Any) -> dict[str, Any]:
    """What a layer with a state holds: of a window the tensors, too, as an update makes new ones that forget."""
    kept: dict[str, Any] = {
        name: {number: None if state is None else state.clone() for number, state in getattr(layer, name).items()}
        for name in ("conv_states", "recurrent_states")
    }
    if isinstance(layer, DynamicSlidingWindowLayer):
        kept |= {name: getattr(layer, name) for name in ("keys", "values", "cumulative_length")}
    return kept
