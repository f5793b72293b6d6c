"""What recognisers of an encoder and a decoder with cross-attention have in common."""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from ..decoding.merge_audio_tokens import refuse_merged
from ..policies.alignment import captured_attention, sharpened, warp
from .adapter import Encoded, Word, WrittenAdapter
from .spelled import words_of
from .timed import features_of

LONGEST_MEDIAN = 0.7  # seconds of a word, as in OpenAI's Whisper


def without_leading_silence(words: list[Word]) -> list[Word]:
    """Let the first word begin later where it seems more than twice as long as half of all words are.

    An alignment begins with the audio, and so its first word does too. OpenAI's Whisper has the same remedy.
    """
    if not words:
        return words
    first, median = words[0], statistics.median([word.end - word.start for word in words])
    usual = min(median, LONGEST_MEDIAN)
    if first.end - first.start <= 2 * usual:
        return words
    return [Word(first.text, first.end - usual, first.end), *words[1:]]


class EncoderDecoderAdapter(WrittenAdapter):
    """Base of the adapters of Whisper and Moonshine."""

    @property
    @abstractmethod
    def frame_samples(self) -> int:
        """Samples that one encoder position stands for."""

    @abstractmethod
    def _encode(self, samples: torch.Tensor) -> torch.Tensor:
        """Encoder states `[1, T, D]` of float32 samples `[n]`, n at least 1."""

    def encode(self, samples: torch.Tensor) -> Encoded:
        seconds = self._check_samples(samples)
        with torch.no_grad():
            return Encoded(self._encode(samples), seconds)

    def _checked(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples that fit into one call."""
        self._check_samples(samples)
        return samples

    def _features(self, samples: torch.Tensor, **options: Any) -> torch.Tensor:
        """What the processor makes of samples, on the model's device and in its precision."""
        extractor = self._processor().feature_extractor
        made = features_of(extractor, samples, self.sample_rate, self.target, **options)
        return made[extractor.model_input_names[0]]

    @property
    def frame_seconds(self) -> float:
        """Seconds of audio per encoder position."""
        return self.frame_samples / self.sample_rate

    def prompt(self, context: str = "") -> list[int]:
        return [self._start()]

    def _start(self) -> int:
        start = self.target.generation_config.decoder_start_token_id
        return int(self.target.config.decoder_start_token_id if start is None else start)

    @abstractmethod
    def heads(self) -> dict[int, list[int]]:
        """Layers of the decoder, and those of their heads whose cross-attention follows the speech."""

    def words(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[Word]:
        tokens = self._spoken(tokens)
        if not tokens:
            return []
        times = self._boundaries(encoded, tokens, prompt)
        ends = times[1:]
        return without_leading_silence(words_of(self.text, self._processor().tokenizer, tokens, times, ends))

    def attention(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> torch.Tensor:
        """Where the speech of each token is: scores `[tokens + 1, frames]`, the last row for what follows them.

        One forward of the decoder; row `i` is of the position that draws token `i`. Frames past the end of the audio
        are left out. `UnsupportedTargetError` while a session merges the audio tokens of the model.
        """
        refuse_merged(self.target)
        heads = self.heads()
        layers = self.target.get_decoder().layers
        with torch.no_grad(), captured_attention([layers[layer].encoder_attn for layer in heads]) as maps:
            self._decoded(encoded, [*prompt, *tokens])
        frames = max(1, min(encoded.hidden_states.shape[1], round(encoded.seconds / self.frame_seconds)))
        chosen = torch.cat([found[heads[layer]] for layer, found in zip(heads, maps, strict=True)])
        return sharpened(chosen[:, len(prompt) - 1 :, :frames])

    def _decoded(self, encoded: Encoded, ids: Sequence[int]) -> torch.Tensor:
        """What the decoder makes of all of a text at once, without a cache, `[L, D]`."""
        inputs = torch.tensor([list(ids)], device=encoded.hidden_states.device)
        # a copy of the states: some decoders add to them in place
        states = encoded.hidden_states.clone()
        outputs = self.target.get_decoder()(input_ids=inputs, encoder_hidden_states=states, use_cache=False)
        return outputs.last_hidden_state[0]

    def _boundaries(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[float]:
        """Seconds at which each token begins, and the end of the last."""
        frames = warp(self.attention(encoded, tokens, prompt).cpu().numpy())
        return [int(frame) * self.frame_samples / self.sample_rate for frame in frames]
