"""Where things are in Moonshine."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from mmaccel.adapter import register_adapter
from mmaccel.linears.packed import has_twin

from ..decoding.growing_convolutions import GrowingConvolutions
from ..decoding.packed import can_pack, packed_attention
from .adapter import Encoded
from .encoder_decoder import EncoderDecoderAdapter

# The names of the authors' checkpoints, and of the folder of the one that is shipped: without a language for English.
RELEASED = re.compile(
    r"(?:.*[/\\])?moonshine-(?:streaming-)?(?:tiny|base|small|medium)(?:-([a-z]{2}))?(?:-[0-9a-f]{12})?/?"
)


@register_adapter
class MoonshineAdapter(EncoderDecoderAdapter):
    """Moonshine: Speech Recognition for Live Transcription and Voice Commands (Jeffries et al., 2024).

    The encoder takes audio of any length without padding, but normalises over all of it, so that what it made of the
    past changes when more comes. It was trained on pieces of 4 to 30 seconds. Exact: the model's own encoder runs.
    """

    family = "moonshine"
    classes: ClassVar[tuple[str, ...]] = ("MoonshineForConditionalGeneration",)
    longest = 30.0

    @property
    def only_language(self) -> str:
        return language_of_checkpoint(self.target)

    @property
    def frame_samples(self) -> int:
        samples = 1
        for convolution in self._convolutions():
            samples *= convolution.stride[0]
        return samples

    def _convolutions(self) -> list[torch.nn.Conv1d]:
        encoder = self.target.get_encoder()
        return [encoder.conv1, encoder.conv2, encoder.conv3]

    def growing(self) -> GrowingConvolutions | None:
        encoder, extractor = self.target.get_encoder(), self._processor().feature_extractor
        is_kept = encoder.dtype == torch.float32 and not extractor.do_normalize
        return GrowingConvolutions(encoder) if is_kept else None

    def encode_all(self, samples: Sequence[torch.Tensor], growing: Sequence[Any] | None = None) -> list[Encoded]:
        """Convolutions, which normalise over a whole piece, one after the other, then each layer once for all."""
        kept = [None] * len(samples) if growing is None else growing
        if (len(samples) == 1 and kept[0] is None) or not self._comes_apart():
            return super().encode_all(samples)
        heard = [self._convolved(self._checked(one), own) for one, own in zip(samples, kept, strict=True)]
        lengths = [states.shape[1] for states in heard]
        states = self._layers(torch.cat(heard, 1), lengths).split(lengths, 1)
        return [Encoded(found, len(one) / self.sample_rate) for found, one in zip(states, samples, strict=True)]

    def _comes_apart(self) -> bool:
        """Whether parts of the encoder can be called one by one: none is compiled or replaced, and attention packs."""
        encoder = self.target.get_encoder()
        return has_twin(encoder) and can_pack([layer.self_attn for layer in encoder.layers])

    def _convolved(self, samples: torch.Tensor, kept: GrowingConvolutions | None) -> torch.Tensor:
        """What the first layer gets, `[1, T, D]`: the encoder's own forward without layers."""
        if kept is not None and len(samples) >= self._shortest():
            return kept.states(samples)
        encoder = copy.copy(self.target.get_encoder())
        encoder._modules = {**encoder._modules, "layers": torch.nn.ModuleList(), "layer_norm": torch.nn.Identity()}
        return encoder(self._features(self._padded(samples))).last_hidden_state

    def _layers(self, states: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Encoder states of pieces of so many positions, one behind the other in `[1, T, D]`."""
        encoder = self.target.get_encoder()
        places = torch.cat([torch.arange(length, device=states.device) for length in lengths])[None]
        turned = encoder.rotary_emb(states, position_ids=places)
        with torch.no_grad(), packed_attention([layer.self_attn for layer in encoder.layers], lengths):
            for layer in encoder.layers:
                states = layer(states, position_ids=places, position_embeddings=turned)
            normed: torch.Tensor = encoder.layer_norm(states)
        return normed

    def _encode(self, samples: torch.Tensor) -> torch.Tensor:
        return self.target.get_encoder()(self._features(self._padded(samples))).last_hidden_state

    def _padded(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples that are enough for the convolutions."""
        return torch.nn.functional.pad(samples, (0, max(0, self._shortest() - samples.numel())))

    def _shortest(self) -> int:
        """Samples of one position, 0.06 s: the convolutions have no output for fewer."""
        shortest = 1
        for convolution in reversed(self._convolutions()):
            shortest = (shortest - 1) * convolution.stride[0] + convolution.kernel_size[0]
        return shortest

    def heads(self) -> dict[int, list[int]]:
        """All heads of the last third of the layers.

        No head was trained to follow the speech. On two recordings of human speech these put the ends of words 0.1 s
        from where Whisper tiny.en's alignment heads do on average, all heads of all layers 0.15 s.
        """
        config = self.target.config
        layers = config.decoder_num_hidden_layers
        return {layer: list(range(config.decoder_num_attention_heads)) for layer in range(layers * 2 // 3, layers)}


def language_of_checkpoint(model: Any) -> str:
    """Of a checkpoint that Moonshine's authors released, the code that its name tells, as no configuration does.

    Empty of any other, such as a snapshot, whose folder is named after a commit.
    """
    released = RELEASED.fullmatch(str(model.name_or_path))
    return released[1] or "en" if released else ""
