"""Layers that keep a window of the past, while rows of a batch and trees have places of their own in them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from mmaccel import private
from mmaccel.patching import attending, attention_layers

KINDS = {"sliding_attention", "full_attention"}  # of layers, as configurations name them


class Windows:
    """The sliding layers of a cache.

    They keep by places, and rows that accept different numbers of drafts have other tokens at the same place. So until
    they are closed full layers stand for them, and which tokens a query sees is counted as the model's own loop counts:
    all that was held before, padding included, and of what came since the tokens of its row.

    Parameters
    ----------
    cache
        After the prompt.
    config
        Of the decoder. It says which layers see a window only, whatever the cache keeps of them: one that was made
        without a configuration keeps all.

    Attributes
    ----------
    layers
        Those that were replaced, by number.
    sizes
        Of the windows, by the layers' numbers.
    """

    def __init__(self, cache: DynamicCache, config: Any) -> None:
        self.cache, self._held = cache, cache.get_seq_length()
        found: list[Any] = cache.layers
        self.layers = _sliding(found)
        kinds = _sliding(DynamicCache(config=config).layers)
        self.sizes = {number: layer.sliding_window for number, layer in kinds.items()}
        self._whole: dict[int, torch.Tensor] = {}  # masks of the next pass, by the length of a window
        self._masks: dict[tuple[int, int], torch.Tensor] = {}  # and of the newest keys
        for number in self.layers:
            layer = found[number]
            found[number] = wide = DynamicLayer()
            wide.lazy_initialization(layer.keys, layer.values)
            wide.keys, wide.values = layer.keys, layer.values

    def expect(self, mask: torch.Tensor, seen: torch.Tensor, depths: torch.Tensor) -> None:
        """A pass follows with a mask `[B, 1, M, N]` over what was `seen [B, N - M]` and new tokens `depths [B, M]`."""
        if not self.sizes:
            return
        counted = torch.cat([torch.ones_like(seen[:, : self._held]), seen[:, self._held :]], 1)
        new = counted.sum(1, keepdim=True) + depths
        places = torch.cat([counted.cumsum(1) - 1, new], 1)
        behind = new[:, None, :, None] - places[:, None, None]
        self._whole, self._masks = {size: mask & (behind < size) for size in {*self.sizes.values()}}, {}

    def mask(self, layer: int, keys: int) -> torch.Tensor | None:
        """What the queries of the pass see of the newest `keys` in a layer; None in a full one."""
        size = self.sizes.get(layer)
        if size is None:
            return None
        if (size, keys) not in self._masks:  # one for all such layers
            self._masks[size, keys] = self._whole[size][..., -keys:]
        return self._masks[size, keys]

    def forget(self, seen: torch.Tensor) -> None:
        """Drop what no row can see any more, where it has become as much as a window."""
        for number, layer in self.layers.items():
            wide: Any = self.cache.layers[number]
            held, most = wide.keys.shape[2], layer.sliding_window  # one more, as a text that ended loses its last
            if held > 2 * most:
                newer = seen.flip(1).cumsum(1).flip(1)
                first = int((seen & (newer <= most)).int().argmax(1).min()) + held - seen.shape[1]
                wide.keys, wide.values = wide.keys[:, :, max(0, first) :], wide.values[:, :, max(0, first) :]

    def close(self, sources: torch.Tensor, total: int) -> None:
        """Put the layers back, with the tokens that stand at `sources [B, N]` of `total` places, of them the last."""
        length = sources.shape[1]
        for number, layer in self.layers.items():
            wide: Any = self.cache.layers[number]
            held, layer.cumulative_length = wide.keys.shape[2], length
            places = (sources[:, max(0, length - layer.sliding_window + 1) :] + held - total).clamp(0, held - 1)
            index = places[:, None, :, None].to(wide.keys.device)
            layer.keys, layer.values = (
                x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in (wide.keys, wide.values)
            )
            self.cache.layers[number] = layer


def unfit_layers(model: Any, config: Any) -> str | None:
    """Why rows cannot have places of their own in the cache of a decoder with this configuration."""
    if getattr(config, "num_kv_shared_layers", 0):
        return "some layers share their keys"
    layers = DynamicCache(config=config).layers
    sliding = _sliding(layers).keys()
    if any(type(layer) is not DynamicLayer for number, layer in enumerate(layers) if number not in sliding):
        return "some layers keep more than keys, which rows cannot take back apart"
    if not sliding:
        return None
    told = sliding <= {layer.layer_idx for layer in own_attention(model)}
    if not told and any(private.runs_compiled(module) for module in model.modules()):
        return "some layers keep a part of the past only, and are compiled with their own masks"
    if not told or set(getattr(config, "layer_types", None) or ()) - KINDS:
        return "some layers keep a part of the past only, and take no mask for each token"
    return None


def _sliding(layers: list[Any]) -> dict[int, Any]:
    """Those of a cache that keep a window, by number."""
    return {number: layer for number, layer in enumerate(layers) if type(layer) is DynamicSlidingWindowLayer}


def own_attention(model: Any) -> list[Any]:
    """The self-attention layers of a decoder that attend by torch's own function, and may be given another.

    None that is compiled, or a part of what is: another function in each call would compile it anew. One that another
    method attends in is of these where that has a part in prompts alone, such as ``SparsePrefill``.
    """
    compiled = {part for module in model.modules() if private.runs_compiled(module) for part in module.modules()}
    layers = [layer for layer in attention_layers(private.decoder_of(model)) if layer not in compiled]
    return [layer for layer in layers if _steps_by(layer) == "sdpa"]


def _steps_by(layer: Any) -> str | None:
    """The attention function by which a layer reads what comes after the prompt."""
    on_prompts_alone = getattr(attending(layer), "prompts_only", False)
    return private.attention_name(private.plain_config(layer.config) if on_prompts_alone else layer.config)
