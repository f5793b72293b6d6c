"""Places of a cache, for trees of drafts and for rows that accept different numbers of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mmaccel import private
from mmaccel.patching import attention_layers

from ..matching import Draft
from .windows import Windows, unfit_layers

ATTENTION = ("sdpa", "eager")  # of transformers, which take a mask of any shape
GAPS = 64  # places that no row looks at, up to which these stay in the cache until the text ends
# Classes that drop the positions which they are given, and count from their padding token on.
COUNT_THEMSELVES = ("Kosmos2TextForCausalLM", "Kosmos2_5TextForCausalLM", "Kosmos2_5ForConditionalGeneration")


class Slots:
    """What stands where in a cache whose rows grow by different numbers of tokens.

    A row that accepts fewer tokens than another gets places that nothing looks at. They are dropped once they are many,
    but where layers keep a window, which forget what is old by places.

    Parameters
    ----------
    cache
        That of the decoder itself; layers that keep all of the past, or a window of it.
    config
        Of the decoder.
    seen
        `[B, S]`, what is held already and may be looked at: all but the padding.

    Attributes
    ----------
    seen
        The same, kept up to date.
    is_whole
        Whether all that is held may be looked at.
    windows
        The layers that keep a window.
    """

    def __init__(self, cache: DynamicCache, config: Any, seen: torch.Tensor) -> None:
        self.cache, self.seen = cache, seen.bool()
        self._held, self._written = seen.shape[1], [0] * len(seen)  # before, and new in each row
        self.is_whole = bool(self.seen.all())
        self.windows = Windows(cache, config)

    def mask(self, drafts: Sequence[Draft], depths: torch.Tensor) -> torch.Tensor:
        """Bool mask `[B, 1, K + 1, S + K + 1]` of the last committed tokens and drafts of up to `K` nodes.

        A node sees what its row has seen, the nodes before it on its path, and itself. `depths [B, K + 1]` are theirs.
        """
        width = 1 + max(draft.size for draft in drafts)
        if width == 1:
            mask = functional.pad(self.seen, (0, 1), value=True)[:, None, None]
        else:
            before = self.seen[:, None].expand(-1, width, -1)
            paths = torch.stack([ancestors(draft, width) for draft in drafts]).to(before.device)
            mask = torch.cat([before, paths], 2)[:, None]
        self.windows.expect(mask, self.seen, depths)
        return mask

    def keep(self, paths: Sequence[Sequence[int] | None], width: int) -> None:
        """Of the `width` newest places keep the first and, behind it, the nodes of a path of each row; of None none."""
        start, kept = self.seen.shape[1], 1 + max(len(path or ()) for path in paths)
        written = [0 if path is None else 1 + len(path) for path in paths]
        self.is_whole = self.is_whole and min(written) == kept
        if any(path and tuple(path) != tuple(range(len(path))) for path in paths):
            index = [[0, *(node + 1 for node in path or ())] for path in paths]
            padded = torch.tensor([[*row, *[0] * (kept - len(row))] for row in index], device=self.seen.device)
            self._move(start + width, start, start + padded)
        if kept < width:
            self.cache.crop(kept - width)
        new = torch.tensor([[place < count for place in range(kept)] for count in written])
        self.seen = torch.cat([self.seen, new.to(self.seen.device)], 1)
        self.windows.forget(self.seen)
        self._written = [before + count for before, count in zip(self._written, written, strict=True)]
        self._close_gaps()

    def _close_gaps(self) -> None:
        """Keep no more places than the longest row has tokens, once there are many more."""
        most, places = max(self._written), self.seen.shape[1] - self._held
        if self.windows.layers or places <= most + max(GAPS, most // 4):
            return
        self._take_together(most)
        new = torch.arange(most) < torch.tensor(self._written)[:, None]
        self.seen = torch.cat([self.seen[:, : self._held], new.to(self.seen.device)], 1)

    def close(self, count: int) -> None:
        """Leave `count` new tokens of each row in one piece, as the model's own loop does; shorter rows are padded."""
        prompt = torch.arange(self._held, device=self.seen.device).expand(len(self.seen), -1)
        sources = torch.cat([prompt, self._order()], 1)
        self.windows.close(sources[:, : self._held + count], self.seen.shape[1])
        self._take_together(count)

    def _order(self) -> torch.Tensor:
        """The new places `[B, N]`, of each row first those that it has."""
        return self._held + torch.argsort(~self.seen[:, self._held :], dim=1, stable=True)

    def _take_together(self, count: int) -> None:
        """Leave `count` new places, what each row has in one piece."""
        new = self.seen[:, self._held :]
        if not bool(new.all()):
            self._move(self.seen.shape[1], self._held, self._order())
        for layer in self._full():
            layer.crop(min(0, count - new.shape[1]))

    def _full(self) -> list[Any]:
        return [layer for layer in self.cache.layers if type(layer) is DynamicLayer]

    def _move(self, total: int, start: int, index: torch.Tensor) -> None:
        """Of `total` places put what stands at `index [B, n]` at those from `start` on.

        Layers may hold fewer, as where tokens of the prompt are dropped before them.
        """
        for layer in self._full():
            shift = layer.keys.shape[2] - total
            for values in (layer.keys, layer.values):
                places = (
                    (index + shift)[:, None, :, None].to(values.device).expand(-1, values.shape[1], -1, values.shape[3])
                )
                values[:, :, start + shift : start + shift + index.shape[1]] = values.gather(2, places)


def ancestors(draft: Draft, width: int) -> torch.Tensor:
    """Bool `[width, width]`: which of the committed token and the nodes of a draft each of them sees.

    Examples
    --------
    >>> ancestors(Draft((5, 6), parents=(-1, -1)), 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    if draft.is_chain:
        return torch.ones(width, width, dtype=torch.bool).tril()
    seen = torch.eye(width, dtype=torch.bool)
    seen[:, 0] = True
    for node, parent in enumerate(draft.parents):
        seen[node + 1] |= seen[parent + 1]
    return seen


def unfit_for_rows(model: Any) -> str | None:
    """Why several texts, or alternatives for one, cannot be verified in one pass of this model."""
    config = model.config.get_text_config(decoder=True)
    places = "decoder_position_ids" if model.config.is_encoder_decoder else "position_ids"
    asked = private.attention_name(config)
    if asked not in ATTENTION:
        return f"attn_implementation={asked!r} takes no mask of its own for each token"
    if attends_itself(model):
        return f"{type(model).__name__} has attention of its own"
    if _is_one_of(model, COUNT_THEMSELVES) or places not in inspect.signature(model.forward).parameters:
        return f"{type(model).__name__} takes no {places}"
    return unfit_layers(model, config)


def attends_itself(model: Any) -> bool:
    """Whether the attention of a decoder is its own, with a mask by which it reads chains as it reads single tokens.

    Some make biases of a mask that has to have two dimensions.
    """
    decoder = private.decoder_of(model)
    return bool(masks_causally(decoder)) and not attention_layers(decoder)


def masks_causally(decoder: Any) -> bool | None:
    """Whether the mask that a decoder asks transformers for is causal; None if it asks for no such mask."""
    kind: Any = type(getattr(decoder, "_orig_mod", decoder))  # of torch.compile
    if not private.names(kind, "create_causal_mask"):
        return None
    return getattr(decoder.config, "is_decoder", True) or not private.names(kind, "create_bidirectional_mask")


def _is_one_of(model: Any, names: tuple[str, ...]) -> bool:
    return any(cls.__name__ in names for cls in type(model).__mro__)
