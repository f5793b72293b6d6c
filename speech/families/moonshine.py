"""Where things are in Moonshine."""

from __future__ import annotations

from typing import ClassVar

import torch

from mmaccel.adapter import register_adapter

from .encoder_decoder import EncoderDecoderAdapter


@register_adapter
class MoonshineAdapter(EncoderDecoderAdapter):
    """Moonshine: Speech Recognition for Live Transcription and Voice Commands (Jeffries et al., 2024).

    The encoder takes audio of any length without padding, but normalises over all of it, so that what it made of the
    past changes when more comes. It was trained on pieces of 4 to 30 seconds. Exact: the model's own encoder runs.
    """

    family = "moonshine"
    classes: ClassVar[tuple[str, ...]] = ("MoonshineForConditionalGeneration",)
    longest: ClassVar[float | None] = 30.0

    @property
    def frame_samples(self) -> int:
        samples = 1
        for convolution in self._convolutions():
            samples *= convolution.stride[0]
        return samples

    def _convolutions(self) -> list[torch.nn.Conv1d]:
        encoder = self.target.get_encoder()
        return [encoder.conv1, encoder.conv2, encoder.conv3]

    def _encode(self, samples: torch.Tensor) -> torch.Tensor:
        shortest = 1
        for convolution in reversed(self._convolutions()):
            shortest = (shortest - 1) * convolution.stride[0] + convolution.kernel_size[0]
        if samples.numel() < shortest:  # 0.06 s, for which the convolutions have no output
            samples = torch.nn.functional.pad(samples, (0, shortest - samples.numel()))
        states: torch.Tensor = self.target.get_encoder()(self._features(samples)).last_hidden_state
        return states

    def heads(self) -> dict[int, list[int]]:
        """All heads of the last third of the layers.

        No head was trained to follow the speech. On two recordings of human speech these put the ends of words 0.1 s
        from where Whisper tiny.en's alignment heads do on average, all heads of all layers 0.15 s.
        """
        config = self.target.config
        layers = config.decoder_num_hidden_layers
        return {layer: list(range(config.decoder_num_attention_heads)) for layer in range(layers * 2 // 3, layers)}
