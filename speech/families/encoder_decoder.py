"""What recognisers of an encoder and a decoder with cross-attention have in common."""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from mmaccel.errors import AudioError, SettingError

from ..decoding.merge_audio_tokens import refuse_merged
from ..policies.alignment import captured_attention, sharpened, warp
from .adapter import Encoded, SpeechAdapter, Word

WORD_STARTS = ("Ġ", "▁")  # how byte-level and SentencePiece tokens say that a space comes before
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


class EncoderDecoderAdapter(SpeechAdapter):
    """Base of the adapters of Whisper and Moonshine.

    Attributes
    ----------
    tokens_per_second, spare_tokens
        Most tokens that a text has: so many for each second, and so many more, which short pieces need.
    """

    tokens_per_second: ClassVar[float] = 6.5  # of Moonshine's authors, against loops
    spare_tokens: ClassVar[int] = 4

    @property
    @abstractmethod
    def frame_samples(self) -> int:
        """Samples that one encoder position stands for."""

    @abstractmethod
    def _encode(self, samples: torch.Tensor) -> torch.Tensor:
        """Encoder states `[1, T, D]` of float32 samples `[n]`, n at least 1."""

    def encode(self, samples: torch.Tensor) -> Encoded:
        with torch.no_grad():
            return Encoded(self._encode(self._checked(samples)), samples.numel() / self.sample_rate)

    def _checked(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples that fit into one call."""
        if samples.ndim != 1 or not samples.numel():
            raise AudioError(f"samples of shape {tuple(samples.shape)}: pass [samples], at least one")
        seconds = samples.numel() / self.sample_rate
        if self.longest is not None and seconds > self.longest:
            raise AudioError(
                f"{seconds:.1f} s in one call, where {self.longest:.0f} s fit: cut it at a pause, as streams do"
            )
        return samples

    def _features(self, samples: torch.Tensor, **options: Any) -> torch.Tensor:
        """What the processor makes of samples, on the model's device and in its precision."""
        extractor = self._processor().feature_extractor
        made = extractor(samples.cpu().numpy(), sampling_rate=self.sample_rate, return_tensors="pt", **options)
        return made[extractor.model_input_names[0]].to(self.target.device, self.target.dtype)

    def _processor(self) -> Any:
        if self.processor is None:
            raise SettingError("the adapter has no processor: set adapter.processor = processor")
        return self.processor

    @property
    def frame_seconds(self) -> float:
        return self.frame_samples / self.sample_rate

    def prompt(self, context: str = "") -> list[int]:
        return [self._start()]

    def _start(self) -> int:
        start = self.target.generation_config.decoder_start_token_id
        return int(self.target.config.decoder_start_token_id if start is None else start)

    def limit(self, seconds: float) -> int:
        return math.ceil(self.tokens_per_second * seconds) + self.spare_tokens

    def banned(self, step: int) -> Sequence[int]:
        settings = self.target.generation_config
        first = settings.begin_suppress_tokens or () if step == 0 else ()
        return [*(settings.suppress_tokens or ()), *first]

    @property
    def end_tokens(self) -> frozenset[int]:
        end = self.target.generation_config.eos_token_id
        return frozenset([] if end is None else end if isinstance(end, list) else [end])

    def text(self, tokens: Sequence[int]) -> str:
        return str(self._processor().tokenizer.decode(self._spoken(tokens), skip_special_tokens=True)).strip()

    def _spoken(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that are no marks."""
        marks = {*self.end_tokens, *self._processor().tokenizer.all_special_ids}
        return [int(token) for token in tokens if int(token) not in marks]

    @abstractmethod
    def heads(self) -> dict[int, list[int]]:
        """Layers of the decoder, and those of their heads whose cross-attention follows the speech."""

    def words(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[Word]:
        tokens = self._spoken(tokens)
        if not tokens:
            return []
        times = self._boundaries(encoded, tokens, prompt)
        spans = self._word_spans(tokens)
        found = [word for first, last in spans if (word := self._word(tokens, times, first, last)) is not None]
        return without_leading_silence(found)

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
        hidden: torch.Tensor = outputs.last_hidden_state[0]
        return hidden

    def _boundaries(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[float]:
        """Seconds at which each token begins, and the end of the last."""
        frames = warp(self.attention(encoded, tokens, prompt).cpu().numpy())
        return [int(frame) * self.frame_samples / self.sample_rate for frame in frames]

    def _word_spans(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """First token of each word, and the one after its last; a language without spaces is one word."""
        names = self._processor().tokenizer.convert_ids_to_tokens(list(tokens))
        starts = [place for place, name in enumerate(names) if place == 0 or name.startswith(WORD_STARTS)]
        return list(zip(starts, [*starts[1:], len(tokens)], strict=True))

    def _word(self, tokens: Sequence[int], times: Sequence[float], first: int, last: int) -> Word | None:
        """A word ends where its punctuation begins, since a pause follows that."""
        text = self.text(tokens[first:last])
        if not text:
            return None
        end = last
        while end > first + 1 and not any(letter.isalnum() for letter in self.text(tokens[end - 1 : end])):
            end -= 1
        return Word(text, times[first], times[end])
