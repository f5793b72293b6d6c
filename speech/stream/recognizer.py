"""Recognise speech while it is spoken: one model for many streams."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.locks import lock_of
from mmaccel.method import is_count, is_number

from ..audio.endpoint import RATE, EndpointPolicy, VoiceActivityDetector, find_endpoint, judge_all
from ..audio.growing_audio import GrowingAudio, Incremental
from ..decoding.cross_cache import CrossCache
from ..decoding.gathering import Gathering
from ..decoding.loops import repeats
from ..decoding.merge_audio_tokens import refuse_merged
from ..decoding.redecode import Hypothesis
from ..families.adapter import Encoded, Word, encode_together
from ..families.finding import adapter_of, check_parts, parts_of, recognising
from ..policies.local_agreement import LocalAgreement
from ..policies.policy import StreamingPolicy
from .segmenter import check_update_interval
from .stream import SpeechStream
from .stream_group import StreamGroup


class StreamingRecognizer:
    """Recognise words while they are spoken, with a model for whole recordings or a streaming one.

    Speech is cut into segments at pauses, and silence is never decoded. A running segment is decoded again every
    `update_interval` seconds with the last hypothesis as a verified draft, and the policy decides which words stay. The
    final of a segment equals one plain greedy decode of its audio, token for token; partials are early guesses of it.
    Encoders that only append, such as that of Moonshine v2, process each frame once, which is equal up to rounding.
    Whisper's, which takes 30 seconds, gets less silence behind the audio than in its own `generate`, which then and
    again has another word.

    Parameters
    ----------
    model
        A recogniser that mmaccel has an adapter for, its adapter, or a session of it. It is not changed, and may be
        used elsewhere meanwhile. Words need times, so a session that merges audio tokens is refused.
    processor
        Its processor: tokenizer and feature extractor.
    policy
        Default :class:`~mmaccel.speech.LocalAgreement` of 2 hypotheses, which fits every model.
    endpoint
        When segments end: ``"auto"`` (default: Silero where its package is installed), ``"silero"``, ``"energy"``,
        or an :class:`~mmaccel.speech.EndpointPolicy` with other settings.
    context
        Characters of earlier text that the model gets, if it accepts any, after speech longer than a segment was cut
        without a pause; default 200, as Whisper-Streaming. 0 keeps segments apart.
    rejoin
        Seconds that a final is decoded with at most, those of segments before it included that end less than a breath
        before; default 0, each segment alone. 14 takes short segments for parts of what they belong to: fewer word
        errors where people pause in their sentences, for one more pass each; those from 2 s on keep their own language.
    packed
        Whether to keep a second copy of the matrix weights in oneDNN's layout; default False. On a CPU in
        float32 a stream of Moonshine tiny took 14 % less time with it on an AMD EPYC, and more on an Intel Xeon, for
        100 MB more. Scores are equal up to rounding, and so are the tokens where no two are as likely as each other.
    batched
        Whether passes of streams in several threads run as one, instead of one after the other; default False. The
        words are equal up to rounding, as for `packed`. :meth:`streams` does so without it, and brings the threads.
    language, task, prompt
        For models that can be told, such as a multilingual Whisper: a language such as ``"de"`` or ``"german"``
        (``"auto"``: each segment in the one that it is heard in, which its final tells), ``"transcribe"`` or
        ``"translate"`` (into English), and names or rare words that may occur (Whisper reads the last 223 tokens).
        Default None: language and task of the checkpoint's `generation_config`, or each segment's own, transcribed.
    timer
        The clock for computing time; default `time.perf_counter`. `time.process_time` gives CPU seconds.

    Raises
    ------
    UnsupportedTargetError
        If mmaccel has no adapter for the model, or it does not suit the policy.
    SettingError
        If a setting is out of range, segments would be longer than what the model takes, or it has no other languages,
        tasks or prompts.
    UnknownNameError
        If there is no such language or task.

    Examples
    --------
    >>> asr = speech.StreamingRecognizer(*speech.load("moonshine-tiny"))  # doctest: +SKIP
    >>> with asr.stream(sample_rate=48_000) as stream:  # doctest: +SKIP
    ...     for chunk in microphone:
    ...         for event in stream.push(chunk):
    ...             print(event)
    ...     tail = stream.finish()
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        policy: StreamingPolicy | None = None,
        endpoint: str | EndpointPolicy = "auto",
        context: int = 200,
        packed: bool = False,
        language: str | None = None,
        task: str | None = None,
        prompt: str = "",
        rejoin: float = 0.0,
        batched: bool = False,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.adapter = adapter_of(recognising(model, packed), processor)
        self._model, self._parts = model, parts_of(model)
        self.language, self.task, self.prompt = language, task, prompt
        self.adapter.instruct(language, task, prompt)
        self.policy = LocalAgreement(2) if policy is None else policy
        self.endpoint = find_endpoint(endpoint)
        self.context, self.rejoin, self.timer = context, rejoin, timer
        self.lock = lock_of(self.adapter.target)  # streams in threads must not run the model at once
        self.gathering = Gathering(self.lock) if batched else None
        self._check()

    def _check(self) -> None:
        if not isinstance(self.policy, StreamingPolicy):
            raise SettingError(f"policy={self.policy!r}: pass one such as speech.LocalAgreement(2)")
        self.policy.check(self.adapter)
        refuse_merged(self.adapter.target)
        if not is_count(self.context, 0, 10_000):
            raise SettingError(f"context={self.context!r}: pass between 0 and 10000 characters, such as 200")
        most = 20.0 if self.adapter.longest is None else min(self.adapter.longest, 20.0)
        if not is_number(self.rejoin, 0, most):
            raise SettingError(f"rejoin={self.rejoin!r}: pass between 0 and {most:g} seconds, such as 14.0")
        if self.rejoin and not self.adapter.continues:
            name = type(self.adapter.target).__name__
            raise SettingError(f"rejoin={self.rejoin!r}: {name} goes on from no text, leave it out")
        if self.adapter.sample_rate != RATE:
            raise UnsupportedTargetError(f"streams have {RATE} samples a second, this model {self.adapter.sample_rate}")
        longest, needed = self.adapter.longest, self.endpoint.longest + self.endpoint.silence
        if longest is not None and needed > longest:
            raise SettingError(
                f"segments of {needed:g} seconds do not fit into this model, which takes {longest:g}:"
                f" pass endpoint=speech.{type(self.endpoint).__name__}(longest={longest - self.endpoint.silence:g})"
            )

    def told(
        self,
        language: str | None = None,
        task: str | None = None,
        prompt: str | None = None,
        silence: float | None = None,
    ) -> StreamingRecognizer:
        """The same recogniser with other instructions; both take turns with the model.

        Parameters
        ----------
        language, task, prompt
            As at the beginning; None (default) for those of this recogniser.
        silence
            Seconds of silence that end a segment; None (default) for those of the endpoint.

        Raises
        ------
        SettingError
            If the model cannot be told one of them, or such a pause ends no segment.
        UnknownNameError
            If there is no such language or task.
        """
        other = copy.copy(self)
        other.adapter = copy.copy(self.adapter)
        other.language = self.language if language is None else language
        other.task = self.task if task is None else task
        other.prompt = self.prompt if prompt is None else prompt
        other.adapter.instruct(other.language, other.task, other.prompt)
        if silence is not None:
            other.endpoint = self.endpoint.cutting(silence)
        other._check()
        return other

    def stream(
        self, sample_rate: float = 16_000, update_interval: float | None = 0.5, channels: int | None = None
    ) -> SpeechStream:
        """Begin a stream; any number of them may be open, also in threads, where they take turns with the model.

        Parameters
        ----------
        sample_rate
            Samples per second of the pushed audio.
        update_interval
            Seconds of speech between two hypotheses, at least 0.1; default 0.5. None for finals only.
        channels
            Channels of the pushed audio; None (default) to read them from the shape of a chunk.

        Raises
        ------
        SettingError
            If a setting is out of range, or modules or adapters of the model were replaced meanwhile.
        """
        check_update_interval(update_interval)
        check_parts(self._model, self._parts)
        return SpeechStream(self, sample_rate, update_interval, channels)

    def streams(
        self,
        count: int,
        sample_rate: float = 16_000,
        update_interval: float | None = 0.5,
        channels: int | None = None,
    ) -> StreamGroup:
        """Begin several streams whose audio is pushed together, and whose passes of the model are one.

        Parameters
        ----------
        count
            How many, 1 to 1000.
        sample_rate, update_interval, channels
            As in :meth:`stream`, of each.

        Raises
        ------
        SettingError
            If a setting is out of range.
        """
        if not is_count(count, 1, 1000):
            raise SettingError(f"count={count!r}: pass between 1 and 1000 streams, such as 8")
        shared = self
        if self.gathering is None:
            shared = copy.copy(self)
            shared.gathering = Gathering(self.lock)
        return StreamGroup([shared.stream(sample_rate, update_interval, channels) for _ in range(count)])

    @torch.no_grad()
    def hear(
        self,
        samples: torch.Tensor,
        prompt: Sequence[int],
        draft: Sequence[int] = (),
        audio: Any = None,
    ) -> tuple[Encoded, Hypothesis]:
        """Encode and decode samples `[n]` at the adapter's rate.

        `draft` is verified, and changes nothing but the work; `audio`, by :meth:`growing`, knows what was made of their
        beginning. What is in a loop, because it does not end or because it compresses more than 2.4 times, is heard
        again with all that the encoder can be given, if it had less.
        """
        with self.lock if self.gathering is None else self.gathering.joined():
            refuse_merged(self.adapter.target)
            encoded = self._encode(samples, audio)
            with self.lock:
                language = self.adapter.language_of(encoded)
            prompt = self.adapter.in_language(prompt, language)
            hypothesis = self._decode(encoded, prompt, draft, audio.cache if isinstance(audio, GrowingAudio) else None)
            asked = int(self.adapter.detects)
            hypothesis = replace(hypothesis, language=language, forwards=hypothesis.forwards + asked)
            looping = not hypothesis.ended or repeats(self.adapter.text(hypothesis.tokens))
            whole = self._encode_in_full(samples) if looping else None
            if whole is None:
                return encoded, hypothesis
            again = self._decode(whole, prompt, (), None)
            return whole, replace(again, forwards=hypothesis.forwards + again.forwards, language=language)

    def _encode(self, samples: torch.Tensor, audio: Any) -> Encoded:
        if isinstance(audio, GrowingAudio):
            with self.lock:
                return audio.encode(samples)
        if self.gathering is None:
            with self.lock:
                return self.adapter.encode(samples)
        return self.gathering.ask(encode_together, (self.adapter, samples, audio))

    def _encode_in_full(self, samples: torch.Tensor) -> Encoded | None:
        with self.lock:
            return self.adapter.encode_in_full(samples)

    def _decode(
        self, encoded: Encoded, prompt: Sequence[int], draft: Sequence[int], cache: CrossCache | None
    ) -> Hypothesis:
        return self.adapter.decode(encoded, prompt, draft, cache, self.gathering)

    def judge(self, detector: VoiceActivityDetector, frames: Sequence[torch.Tensor]) -> list[float]:
        """How likely the next frames of a stream hold speech."""
        if self.gathering is None:
            return judge_all([(detector, frames)])[0]
        return self.gathering.ask(judge_all, (detector, frames))

    def growing(self) -> Any:
        """What encodes a segment as it grows, where the model's encoder lets some of it stay; None for the others.

        Where only sums change by it, as in Moonshine, it is for streams in batches, which are equal up to rounding.
        """
        if self.adapter.appends and isinstance(self.adapter, Incremental):
            return GrowingAudio(self.adapter)
        return None if self.gathering is None else self.adapter.growing()

    @torch.no_grad()
    def words(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[Word]:
        """The words of a hypothesis with times from the start of its audio."""
        with self.lock:
            return self.adapter.words(encoded, tokens, prompt) if tokens else []
