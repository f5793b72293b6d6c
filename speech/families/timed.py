"""What recognisers have in common that give each token its place in the audio: CTC, transducers, frame by frame."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import BatchFeature

from mmaccel.decoding.setting import pass_device
from mmaccel.machine import unrounded

from ..audio.growing_audio import AudioStream, GrowingAudio
from ..decoding.cross_cache import CrossCache
from ..decoding.gathering import Gathering
from ..decoding.redecode import Hypothesis
from ..decoding.transducer_greedy import EmittedToken
from .adapter import Encoded, SpeechAdapter, Word
from .spelled import words_of


@dataclass(frozen=True)
class TimedToken:
    """A token, and the samples in which it was heard."""

    token: int
    start: int
    end: int


def as_states(tokens: Iterable[TimedToken]) -> torch.Tensor:
    """Tokens as rows `[1, n, 3]`, as :class:`Encoded` carries them."""
    rows = [[one.token, one.start, one.end] for one in tokens]
    return torch.tensor(rows, dtype=torch.long).reshape(1, len(rows), 3)


def timed(emissions: Iterable[EmittedToken], model: Any, processor: Any) -> list[TimedToken]:
    """Tokens of a transducer with their samples, of which each frame of its encoder has as many."""
    size = int(processor.feature_extractor.hop_length * model.config.encoder_config.subsampling_factor)
    return [TimedToken(one.token, one.frame * size, one.end * size) for one in emissions]


class TimedAdapter(SpeechAdapter):
    """Base of the adapters of recognisers that give each token its place in the audio.

    Their text needs no decoder that is asked again and again: what :meth:`encode` returns are the tokens of the text
    with their samples. A draft saves nothing, and the model goes on from no text.
    """

    continues: ClassVar[bool] = False

    def decode(
        self,
        encoded: Encoded,
        prompt: Sequence[int],
        draft: Sequence[int] = (),
        cache: CrossCache | None = None,
        gathering: Gathering | None = None,
    ) -> Hypothesis:
        tokens = tuple(encoded.hidden_states[0, :, 0].tolist())
        return Hypothesis(tokens, encoded.passes, True, settled=encoded.settled)

    def prompt(self, context: str = "") -> list[int]:
        return []

    def limit(self, seconds: float) -> int:
        return math.ceil(seconds * self.sample_rate)

    def banned(self, step: int) -> Sequence[int]:
        return ()

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset()

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, of which two that are equal are two: no blanks are among them.

        Tokenizers that were made for CTC would put them together unless told not to.
        """
        tokenizer = self._processor().tokenizer
        groups = "group_tokens" in inspect.signature(getattr(tokenizer, "_decode", tokenizer.decode)).parameters
        told = {"group_tokens": False} if groups else {}
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True, **told)).strip()

    def words(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[Word]:
        rows = encoded.hidden_states[0].tolist()
        starts, ends = ([row[column] / self.sample_rate for row in rows] for column in (1, 2))
        return words_of(self.text, self._processor().tokenizer, [row[0] for row in rows], starts, ends)

    def _features(self, samples: torch.Tensor) -> Mapping[str, Any]:
        """What the processor makes of samples, on the model's device and in its precision."""
        return features_of(self._processor().feature_extractor, samples, self.sample_rate, self.target)


class WholeAdapter(TimedAdapter):
    """Of those that look at the whole audio, and hear a segment again at each update."""

    @abstractmethod
    def _hear(self, samples: torch.Tensor) -> list[TimedToken]:
        """Tokens without blanks, of float32 samples `[n]`, n at least a twentieth of a second."""

    def encode(self, samples: torch.Tensor) -> Encoded:
        seconds = self._check_samples(samples)
        filled = torch.nn.functional.pad(samples, (0, max(0, self.sample_rate // 20 - samples.numel())))
        with torch.no_grad():
            return Encoded(as_states(self._hear(filled)), seconds)


class StreamedAdapter(TimedAdapter):
    """Of those whose tokens for past audio stay, so that a segment is heard once while it grows."""

    appends: ClassVar[bool] = True

    @abstractmethod
    def begin(self) -> AudioStream:
        """A stream of audio: `push(samples)` returns new tokens that are final, `peek()` those that may change."""

    def encode(self, samples: torch.Tensor) -> Encoded:
        self._check_samples(samples)
        return GrowingAudio(self).encode(samples)


def features_of(extractor: Any, samples: torch.Tensor, rate: int, model: Any, **options: Any) -> Mapping[str, Any]:
    """What a feature extractor makes of samples `[n]`, on the model's device and in its precision."""
    with unrounded():  # they cannot take bfloat16
        made = extractor(samples.cpu().numpy(), sampling_rate=rate, return_tensors="pt", **options)
    return BatchFeature(made).to(pass_device(model, samples), model.dtype)
