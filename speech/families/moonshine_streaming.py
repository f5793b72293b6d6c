"""Where things are in Moonshine v2, whose encoder hears the audio once."""

from __future__ import annotations

from typing import ClassVar

import torch

from mmaccel.adapter import register_adapter
from mmaccel.decoding.setting import pass_device

from ..decoding.cached_encoder import EncoderStream
from .encoder_decoder import EncoderDecoderAdapter
from .moonshine import language_of_checkpoint


@register_adapter
class MoonshineStreamingAdapter(EncoderDecoderAdapter):
    """Moonshine v2: Ergodic Streaming Encoder ASR for Latency-Critical Speech Applications (2026).

    The encoder looks back and ahead by a few frames only, 12 of 20 ms in the released models: what it made of
    the audio before stays as it is. :meth:`begin` encodes audio as it comes. Exact: :meth:`encode` runs the model's
    own encoder with the window masks it was trained with, which it leaves out if no padding mask is given.
    """

    family = "moonshine_streaming"
    classes: ClassVar[tuple[str, ...]] = ("MoonshineStreamingForConditionalGeneration",)
    appends: ClassVar[bool] = True

    @property
    def longest(self) -> float:
        """The decoder has learned places for so many seconds of encoder frames, 82 in the released models."""
        return float(self.target.config.max_position_embeddings * self.frame_seconds)

    @property
    def only_language(self) -> str:
        return language_of_checkpoint(self.target)

    @property
    def frame_samples(self) -> int:
        embedder = self.target.get_encoder().embedder
        return int(embedder.frame_len * embedder.conv1.stride[0] * embedder.conv2.stride[0])

    def begin(self) -> EncoderStream:
        """A stream of audio: `push(samples)` returns new states `[1, t, D]` that are final, `peek()` the rest."""
        return EncoderStream(self.target.get_encoder())

    def _encode(self, samples: torch.Tensor) -> torch.Tensor:
        encoder = self.target.get_encoder()
        padding = -samples.numel() % encoder.embedder.frame_len
        values = samples.to(pass_device(encoder, samples), encoder.dtype)[None]
        mask = torch.ones_like(values, dtype=torch.long)
        values, mask = (torch.nn.functional.pad(row, (0, padding)) for row in (values, mask))
        output = encoder(values, attention_mask=mask)
        return output.last_hidden_state[:, output.attention_mask[0].bool()]

    def heads(self) -> dict[int, list[int]]:
        """All of them, since none are known to follow the speech better."""
        config = self.target.config
        return {layer: list(range(config.num_attention_heads)) for layer in range(config.num_hidden_layers)}

    def cross_input(self, hidden_states: torch.Tensor, start: int) -> torch.Tensor:
        """States with learned places added, projected to the decoder's width."""
        decoder = self.target.get_decoder()
        places = torch.arange(start, start + hidden_states.shape[1], device=hidden_states.device)
        return decoder.proj(hidden_states + decoder.pos_emb(places))
