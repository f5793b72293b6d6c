"""Base of the adapters of speech recognisers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter
from mmaccel.errors import SettingError


@dataclass(frozen=True)
class Word:
    """A word and its times, in seconds from the start of the audio."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Encoded:
    """The encoder's output for a piece of audio.

    Attributes
    ----------
    hidden_states
        `[1, T, D]`, what the decoder attends to.
    seconds
        Length of the audio, without padding.
    """

    hidden_states: torch.Tensor
    seconds: float


class SpeechAdapter(Adapter):
    """Base of the adapters of recognisers with an encoder and a decoder of text.

    Attributes
    ----------
    processor
        Tokenizer and feature extractor of the model; set by the recogniser that uses it.
    sample_rate
        Samples per second that the encoder expects.
    longest
        Seconds of audio that fit into one call, None for any length.
    appends
        Whether the encoder's output for past audio stays the same when more arrives.
    """

    modality: ClassVar[str] = "speech"
    sample_rate: ClassVar[int] = 16_000
    longest: ClassVar[float | None] = None
    appends: ClassVar[bool] = False

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.processor: Any = None

    def instruct(self, language: str | None = None, task: str = "transcribe", prompt: str = "") -> None:
        """Set the language, the task and the words that may occur, for models that can be told.

        Raises
        ------
        SettingError
            If this model cannot be told one of them.
        """
        given = {"language": language, "task": "" if task == "transcribe" else task, "prompt": prompt.strip()}
        for name, value in given.items():
            if value:
                raise SettingError(
                    f"{name}={value!r}: {type(self.target).__name__} takes none; a multilingual Whisper does, such as"
                    " openai/whisper-tiny"
                )

    @abstractmethod
    def encode(self, samples: torch.Tensor) -> Encoded:
        """What the decoder attends to, of audio `[samples]` in float32 at `sample_rate`."""

    def encode_all(self, samples: Sequence[torch.Tensor]) -> list[Encoded]:
        """The same of several pieces of audio, equal up to rounding; here one after the other."""
        return [self.encode(one) for one in samples]

    def encode_in_full(self, samples: torch.Tensor) -> Encoded | None:
        """The same with all that the encoder can be given, where less of it leads into a loop; None if it had all."""
        return None

    @property
    @abstractmethod
    def frame_seconds(self) -> float:
        """Seconds of audio per encoder position."""

    @abstractmethod
    def prompt(self, context: str = "") -> list[int]:
        """Tokens that a decoder starts from; `context` is the text before, for models that take one."""

    @abstractmethod
    def limit(self, seconds: float) -> int:
        """Most tokens that this much speech can hold; a decoder that continues is in a loop."""

    @abstractmethod
    def banned(self, step: int) -> Sequence[int]:
        """Tokens that `generate` of this model would never draw as new token `step`, counted from 0."""

    @property
    @abstractmethod
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a text."""

    @abstractmethod
    def text(self, tokens: Sequence[int]) -> str:
        """The text of new tokens, without marks such as the end."""

    @abstractmethod
    def words(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[Word]:
        """The words of new tokens with times, by the cross-attention of the decoder."""
