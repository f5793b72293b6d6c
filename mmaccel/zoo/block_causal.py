"""BlockCausalModel: a transformers decoder that fills blocks, as a pipeline calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from .. import private
from ..errors import SettingError, UnsupportedTargetError
from ..masks import additive

FEATURES = {  # what a picture or video is given as: the call that makes features of it, and their placeholder
    "pixel_values": ("get_image_features", "image_token_id"),
    "pixel_values_videos": ("get_video_features", "video_token_id"),
}
PLACING = ("mm_token_type_ids", "second_per_grid_ts")  # what tells positions alone, and features nothing


class BlockCausalModel(torch.nn.Module):
    """A decoder, vision or not, that was trained to fill blocks and to read causally what stands before them.

    What diffusers' `LLaDA2Pipeline` calls: `model(ids, attention_mask=..., position_ids=...)` gives logits of all
    tokens, of which the last `block_length` are the block. Each token of it sees the whole block and all before it;
    tokens before it see what stands before themselves, or also the rest of their block, as in SDAR.

    Parameters
    ----------
    model
        A transformers model with logits, such as a `LlavaOnevisionForConditionalGeneration` or a
        `Qwen2_5_VLForConditionalGeneration`, whose three positions of each token its own `get_rope_index` gives.
    block_length
        Tokens of a block. Default: `block_length` of its configuration.
    past
        What a token before the block sees: ``"causal"``, those before it, as in tiny-canvas; ``"blocks"``, also those
        of its own block, as in SDAR. Default ``"causal"``.

    Raises
    ------
    UnsupportedTargetError
        If the model has several positions for a token, and no `get_rope_index`.
    SettingError
        If no length of a block is known, or `past` is another word.

    Examples
    --------
    >>> model = canvas.BlockCausalModel(decoder, block_length=32)  # doctest: +SKIP
    >>> logits = model(ids, attention_mask=mask, position_ids=positions).logits  # doctest: +SKIP
    """

    reads_causally = True  # so that a cache of what stands before a block is exact

    def __init__(self, model: Any, block_length: int | None = None, past: str = "causal") -> None:
        super().__init__()
        if past not in ("causal", "blocks"):
            raise SettingError(f"BlockCausalModel(past={past!r}): give 'causal' or 'blocks'")
        length = block_length or getattr(model.config, "block_length", None)
        if not length:
            raise SettingError(
                f"BlockCausalModel({type(model).__name__}): its configuration names no block_length; give the one it"
                " was trained with, such as block_length=32"
            )
        rotary = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
        self._find_places: Any = getattr(getattr(model, "model", None), "get_rope_index", None)
        self._several = "mrope_section" in rotary
        if self._several and self._find_places is None:
            raise UnsupportedTargetError(
                f"{type(model).__name__} has three positions for each token and no get_rope_index, where a canvas has"
                " one"
            )
        self.model, self.block_length, self.past = model, int(length), past
        self._shown: torch.Tensor | None = None  # [B, P, D], features at the placeholders of the prompt
        self._placed: torch.Tensor | None = None  # [B, P], where those are
        self._places: torch.Tensor | None = None  # [3, B, P], positions of a prompt that has several for each token

    @property
    def writes_word_by_word(self) -> bool:
        """Whether, read causally, its logits are those of the next token."""
        return self.past == "causal"

    @property
    def config(self) -> Any:
        """The decoder's configuration."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return self.model.dtype

    @contextmanager
    def word_by_word(self) -> Iterator[None]:
        """Within this block each token sees those before it alone, as in the decoder's own `generate`."""
        length, self.block_length = self.block_length, 1
        try:
            yield
        finally:
            self.block_length = length

    @contextmanager
    def seeing(self, input_ids: torch.Tensor, **visual: torch.Tensor) -> Iterator[None]:
        """Within this block prompts show pictures or videos; they are encoded once.

        Parameters
        ----------
        input_ids : int64 `[B, P]`
            The prompts, with a placeholder for each visual token.
        visual
            `pixel_values` or `pixel_values_videos`, and what the processor returned beside it.

        Raises
        ------
        SettingError
            If placeholders and visual tokens are not equally many.
        """
        kind = next((kind for kind in FEATURES if kind in visual), None)
        if kind is None:
            yield
            return
        try:
            self._show(kind, input_ids, visual)
            yield
        finally:
            self._shown = self._placed = self._places = None

    def _show(self, kind: str, input_ids: torch.Tensor, visual: dict[str, torch.Tensor]) -> None:
        """Encode pictures or videos, and note where in the prompts they are."""
        call, placeholder = FEATURES[kind]
        placing = {name: visual.pop(name) for name in PLACING if name in visual}
        if self._several:
            types = (input_ids == self.config.image_token_id) + 2 * (input_ids == self.config.video_token_id)
            placing = {"mm_token_type_ids": types, **placing}
            grids = {name: value for name, value in visual.items() if name.endswith("grid_thw")}
            self._places = self._find_places(input_ids, **placing, **grids)[0]
        encoded = getattr(self.model, call)(visual.pop(kind), **visual).pooler_output
        features = torch.cat([row.flatten(0, -2) for row in encoded]).to(self.device)
        placed = input_ids == getattr(self.config, placeholder)
        if int(placed.sum()) != len(features):
            raise SettingError(
                f"{int(placed.sum())} placeholders for {len(features)} visual tokens: let the processor write them"
            )
        shown = features.new_zeros(*input_ids.shape, features.shape[-1])
        self._shown, self._placed = shown.masked_scatter(placed[..., None], features), placed

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, position_ids: Any = None
    ) -> SimpleNamespace:
        """Logits `[B, N, V]` of tokens `[B, N]`, whose last `block_length` are the block.

        `attention_mask` `[B, N]` is 0 for padding on the left; `position_ids` `[B, N]` are the columns of the canvas.
        Raises an `UnsupportedTargetError` if the model's attention is neither SDPA nor eager.
        """
        count, length = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device).expand(count, -1)
        logits = self.model(
            inputs_embeds=self._embedded(input_ids, position_ids),
            attention_mask=self._mask(position_ids[0], attention_mask),
            position_ids=self._positions(position_ids),
            use_cache=False,
        ).logits
        return SimpleNamespace(logits=logits)

    def _positions(self, columns: torch.Tensor) -> torch.Tensor:
        """What the model counts as positions: the columns `[B, N]`, or three of each `[3, B, N]`."""
        if not self._several:
            return columns
        if self._places is None:
            return columns.expand(3, -1, -1)
        places, length = self._places.to(columns.device), self._places.shape[2]
        places = places.repeat_interleave(len(columns) // places.shape[1], 1)
        after = columns + places.amax((0, 2))[:, None] + 1 - length
        own = places.gather(2, columns.clamp(max=length - 1).expand(3, -1, -1))
        return torch.where(columns < length, own, after)

    def _embedded(self, ids: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Tokens `[B, N]` in these columns of the canvas, with features in place of placeholders; each row its own."""
        embedded: torch.Tensor = self.model.get_input_embeddings()(ids)
        if self._shown is None or self._placed is None:
            return embedded
        prompts, length = self._placed.shape
        copies = len(ids) // prompts  # of each prompt, where several canvases are computed at once
        rows, within = torch.arange(len(ids), device=ids.device)[:, None] // copies, columns.clamp(max=length - 1)
        placed = self._placed[rows, within] & (columns < length)
        return torch.where(placed[..., None], self._shown[rows, within].to(embedded.dtype), embedded)

    def _mask(self, columns: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Which token `[., 1, N, N]` each token sees: itself and what stands before it, a block all of itself."""
        last = torch.arange(len(columns), device=columns.device).clamp(max=len(columns) - self.block_length)
        place = last if self.past == "causal" else columns // self.block_length
        seen = (place <= place[:, None])[None, None]
        if padding is not None:
            itself = torch.eye(len(columns), dtype=torch.bool, device=columns.device)  # of padding too: no row is empty
            seen = (seen & padding[:, None, None, :].bool()) | itself
        return self._for_attention(seen)

    def _for_attention(self, seen: torch.Tensor) -> torch.Tensor:
        """A bool mask as the model's attention takes it: eager attention adds it to its scores."""
        name = private.attention_name(self.config.get_text_config())
        if name not in ("sdpa", "eager", None):
            raise UnsupportedTargetError(
                f"BlockCausalModel gives each token a mask of its own, which is not for attn_implementation={name!r}:"
                " load the model with attn_implementation='sdpa'"
            )
        return additive(seen, self.dtype) if name == "eager" else seen
