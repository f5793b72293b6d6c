"""Base of the adapters of speech recognisers."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from mmaccel.adapter import Adapter
from mmaccel.errors import AudioError, SettingError

from ..decoding.redecode import CrossPasses, Hypothesis, decode
from .languages import AUTO, language_code

if TYPE_CHECKING:
    from ..decoding.cross_cache import CrossCache
    from ..decoding.gathering import Gathering


@dataclass(frozen=True)
class Word:
    """A word and its times, in seconds from the start of the audio."""

    text: str
    start: float
    end: float

    def between(self, start: float, end: float) -> Word:
        """This word of a segment, with times of the stream and inside the segment."""
        begin = min(max(start + self.start, start), end)
        return Word(self.text, begin, min(max(start + self.end, begin), end))


@dataclass(frozen=True)
class Encoded:
    """What the model made of a piece of audio before there is text.

    Attributes
    ----------
    hidden_states
        `[1, T, D]`, what the decoder attends to; where each token belongs to a frame, tokens and their samples
        (:class:`~mmaccel.speech.families.timed.TimedAdapter`).
    seconds
        Length of the audio, without padding.
    passes
        Where these are tokens, passes of the model that drew them; default 1.
    settled
        How many of the `T` stay as they are whatever follows; None (default) where that is not known.
    """

    hidden_states: torch.Tensor
    seconds: float
    passes: int = 1
    settled: int | None = None


class Passes(Protocol):
    """A decoder behind one piece of audio, with what it has read so far."""

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits `[1, n, V]` after each of `n` tokens behind all before; they are read."""

    def forget(self, count: int) -> None:
        """Take back the last `count` tokens."""


class SpeechAdapter(Adapter):
    """Base of the adapters of recognisers.

    Attributes
    ----------
    processor
        Tokenizer and feature extractor of the model; set by the recogniser that uses it.
    sample_rate
        Samples per second that the encoder expects.
    appends
        Whether the encoder's output for past audio stays the same when more arrives.
    delayed
        Whether the last words take passes over the silence behind them, so that looks on the way do without these.
    continues
        Whether a text can be given that the model goes on from.
    task
        What the model does with speech: ``"transcribe"`` or ``"translate"``.
    """

    modality: ClassVar[str] = "speech"
    sample_rate: ClassVar[int] = 16_000
    appends: ClassVar[bool] = False
    delayed: ClassVar[bool] = False
    continues: ClassVar[bool] = True
    task: str = "transcribe"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.processor: Any = None

    @property
    def longest(self) -> float | None:
        """Seconds of audio that fit into one call, None for any length."""
        return None

    @property
    def detects(self) -> bool:
        """Whether :meth:`language_of` asks the model, by a pass of its decoder."""
        return False

    def instruct(self, language: str | None = None, task: str | None = None, prompt: str = "") -> None:
        """Set the language, the task and the words that may occur, for models that can be told.

        A language or task of None stays as it is.

        Raises
        ------
        SettingError
            If this model cannot be told one of them.
        """
        is_own = language and language_code(language) in (AUTO, self.only_language or None)
        given = {
            "language": "" if is_own else language,
            "task": "" if task == "transcribe" else task,
            "prompt": prompt.strip(),
        }
        for name, value in given.items():
            if value:
                raise SettingError(
                    f"{name}={value!r}: {type(self.target).__name__} takes none; a multilingual Whisper does, such as"
                    " openai/whisper-tiny"
                )

    def language_of(self, encoded: Encoded | None) -> str:
        """The language of a piece of audio: the one that the model was told, or tells; empty where it tells none.

        Only a model that :attr:`detects` needs the audio.
        """
        return ""

    @property
    def only_language(self) -> str:
        """The code of the language of a model that has no other, where it is known; else empty."""
        return ""

    def in_language(self, prompt: Sequence[int], language: str) -> Sequence[int]:
        """Tokens of :meth:`prompt` with the mark of a language that was heard."""
        return prompt

    @abstractmethod
    def encode(self, samples: torch.Tensor) -> Encoded:
        """What the decoder attends to, of audio `[samples]` in float32 at `sample_rate`."""

    def growing(self) -> Any:
        """What keeps the first steps of a piece of audio that grows, for :meth:`encode_all`; None where none can be."""
        return None

    def encode_all(self, samples: Sequence[torch.Tensor], growing: Sequence[Any] | None = None) -> list[Encoded]:
        """The same of several pieces of audio, equal up to rounding; here one after the other.

        `growing` has for each piece what :meth:`growing` made for it when it began, or None.
        """
        return [self.encode(one) for one in samples]

    def encode_in_full(self, samples: torch.Tensor) -> Encoded | None:
        """The same with all that the encoder can be given, where less of it leads into a loop; None if it had all."""
        return None

    def decode(
        self,
        encoded: Encoded,
        prompt: Sequence[int],
        draft: Sequence[int] = (),
        cache: CrossCache | None = None,
        gathering: Gathering | None = None,
    ) -> Hypothesis:
        """The text of a piece of audio; a draft changes nothing but the work, nor do passes shared with others."""
        return decode(self, encoded, prompt, draft, cache, gathering=gathering)

    def passes(self, encoded: Encoded, cache: CrossCache | None = None) -> Passes:
        """The decoder behind a piece of audio."""
        return CrossPasses(self, encoded, cache)

    def cross_input(self, hidden_states: torch.Tensor, start: int) -> torch.Tensor:
        """What the cross-attention's projections get for states `[1, t, D]` of the positions from `start` on."""
        return hidden_states

    def _check_samples(self, samples: torch.Tensor) -> float:
        """Seconds of samples `[n]`; `AudioError` if they are none, or too many."""
        if samples.ndim != 1 or not samples.numel():
            raise AudioError(f"samples of shape {tuple(samples.shape)}: pass [samples], at least one")
        seconds = samples.numel() / self.sample_rate
        if self.longest is not None and seconds > self.longest:
            raise AudioError(
                f"{seconds:.1f} s in one call, where {self.longest:.0f} s fit: cut it at a pause, as streams do"
            )
        return seconds

    def _processor(self) -> Any:
        if self.processor is None:
            raise SettingError("the adapter has no processor: set adapter.processor = processor")
        return self.processor

    @abstractmethod
    def prompt(self, context: str = "") -> list[int]:
        """Tokens that a decoder starts from; `context` is the text before, for models that take one."""

    @abstractmethod
    def limit(self, seconds: float) -> int:
        """Most tokens that this much speech can hold; a decoder that continues is in a loop."""

    def room(self, prompt: Sequence[int]) -> int:
        """Most tokens that the decoder has positions for behind a prompt."""
        return sys.maxsize

    def has_room(self, prompt: Sequence[int], seconds: float) -> bool:
        """Whether the decoder has positions for a prompt and as many tokens as this much speech can hold."""
        return True

    @abstractmethod
    def banned(self, step: int) -> Sequence[int]:
        """Tokens that the settings of this model suppress as new token `step`, counted from 0."""

    @property
    @abstractmethod
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a text."""

    @abstractmethod
    def text(self, tokens: Sequence[int]) -> str:
        """The text of new tokens, without marks such as the end."""

    @abstractmethod
    def words(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[Word]:
        """The words of new tokens with times."""


@torch.no_grad()
def encode_together(items: list[tuple[SpeechAdapter, torch.Tensor, Any]]) -> list[Encoded]:
    """Pieces of audio of several streams, at once where what each was told stays out of the encoder.

    Each with its adapter, and with what that made by :meth:`SpeechAdapter.growing` or None.
    """
    first, *_ = items[0]
    if type(first).encode_all is SpeechAdapter.encode_all:  # each by the adapter that knows what it was told
        return [adapter.encode(samples) for adapter, samples, _ in items]
    return first.encode_all([samples for _, samples, _ in items], [growing for *_, growing in items])


class WrittenAdapter(SpeechAdapter):
    """Base of the adapters of models that `generate` their text.

    Attributes
    ----------
    spare_tokens
        Tokens that a text may have beside those of :attr:`tokens_per_second`, which short pieces need.
    """

    spare_tokens: ClassVar[int] = 4

    @property
    def tokens_per_second(self) -> float:
        """Most tokens of a second of speech, against loops; by default those of Moonshine's authors.

        They give languages other than English twice as many, and so does this wherever English is not known.
        """
        return 6.5 if self.only_language == "en" else 13.0

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
