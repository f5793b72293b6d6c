"""One stream of audio into one recogniser: push chunks, get words."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch

from mmaccel.errors import StreamFinishedError

from ..audio.endpoint import FRAME, RATE, decibels
from ..audio.growing_audio import GrowingAudio
from ..audio.intake import Intake
from ..audio.sample_buffer import SampleBuffer
from ..decoding.redecode import Hypothesis
from ..families.adapter import Encoded, Word
from ..policies.policy import SegmentHypothesis
from .events import Eager, Endpoint, Event, Final, Resumed
from .rejoined import Rejoined
from .segment import Segment, remainder
from .segmenter import Cut, Look, Resume, Segmenter, Task
from .stats import RealTimeClock, StreamStats
from .units import ends_sentence, last_words

if TYPE_CHECKING:
    from .recognizer import StreamingRecognizer


class SpeechStream:
    """Audio in, events out; made by :meth:`mmaccel.speech.StreamingRecognizer.stream`.

    The decoded segments and their times follow from the audio alone: chunks of 10 ms and of 5 s give the same events.
    Memory is bounded by the longest segment, however long the stream. If the model raises in the middle of a push, no
    audio is lost: the next push continues where this one stopped.

    Attributes
    ----------
    stats
        Statistics so far.
    starts
        Seconds at which speech began, the latest; whoever reads them takes them out.

    Examples
    --------
    >>> with asr.stream() as stream:  # doctest: +SKIP
    ...     events = stream.push(chunk) + stream.finish()
    """

    def __init__(
        self,
        recognizer: StreamingRecognizer,
        sample_rate: float,
        update_interval: float | None,
        channels: int | None = None,
    ) -> None:
        self.recognizer, self.stats = recognizer, StreamStats()
        self._intake = Intake(sample_rate, channels)
        self._listener = recognizer.endpoint.listen()
        self._segmenter = Segmenter(recognizer.endpoint, update_interval)
        self.starts = self._segmenter.starts
        self._buffer = SampleBuffer()
        self._judged: deque[tuple[float, float]] = deque()  # frames that the segmenter has not had
        self._work: deque[Task] = deque()
        self._events: list[Event] = []
        self._segment: Segment | None = None
        self._rejoined = Rejoined(recognizer)
        self._history = ""  # the last words of finals of this speech, for models that take context
        self._total: int | None = None  # samples of the stream, once it has ended
        self._clock, self._mark = RealTimeClock(), 0.0
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def sample_rate(self) -> float:
        """Samples a second of what is pushed."""
        return self._intake.rate

    @property
    def channels(self) -> int | None:
        """Channels of what is pushed; None to read them from its shape."""
        return self._intake.channels

    @property
    def time(self) -> float:
        """Seconds of audio that came."""
        return (self._buffer.end if self._total is None else self._total) / RATE

    @torch.inference_mode(False)  # what is kept between two calls is written in both, in or out of that mode
    def push(self, chunk: Any, sample_rate: float | None = None, partials: bool = True) -> list[Event]:
        """Take in a chunk of any length; returns what became known by it.

        Parameters
        ----------
        chunk
            Samples in int16, float32 or another type that :func:`mmaccel.speech.audio.audio.to_samples` takes, as an
            array, a tensor or bytes; an empty one is fine.
        sample_rate
            If it changes: of this chunk and those after it.
        partials
            False leaves out hypotheses on the way, such as to catch up. Finals do not depend on it.

        Raises
        ------
        AudioError
            If the chunk is no audio. It is left out; the stream goes on as if it had not been pushed.
        StreamFinishedError
            After :meth:`finish` or :meth:`close`.
        """
        if self._finished or self._total is not None:
            raise StreamFinishedError("the stream is finished: open another with recognizer.stream()")
        self._buffer.append(self._intake.push(chunk, sample_rate))
        return self._advance(partials)

    @torch.inference_mode(False)
    def finish(self) -> list[Event]:
        """The audio has ended: returns what was still held back. A second call returns nothing."""
        if self._finished:
            return []
        if self._total is None:
            self._buffer.append(self._intake.finish())
            self._total = self._buffer.end
            self._buffer.append(torch.zeros(-self._total % FRAME))
        self._advance(True, deliver=False)
        self._work.extend(self._segmenter.flush(self._total))
        events = self._advance(True)
        self.close()
        return events

    def close(self) -> None:
        """Let go of the audio, and take no more; what was held back is dropped."""
        self._total = self._total if self._total is not None else self._buffer.end
        self._finished = True
        self._buffer, self._segment = SampleBuffer(), None
        self._work, self._judged = deque(), deque()

    def _advance(self, partials: bool, deliver: bool = True) -> list[Event]:
        """Judge the frames that are complete, and do what they ask for."""
        self._mark = self.recognizer.timer()
        try:
            self._do_all(partials)
            self._judge()
            while self._judged:
                self._work.extend(self._segmenter.feed(*self._judged.popleft()))
                self._use_pause()
                self._do_all(partials)
            needed = self._rejoined.needed_from(self._segmenter.needed_from)
            self._buffer.drop_before(min(needed, self._segmenter.position))
        finally:
            self._spend()
        events, self._events = self._events, ([] if deliver else self._events)
        return events if deliver else []

    def _judge(self) -> None:
        """Likelihood of speech and level of the frames that are complete."""
        start = self._segmenter.position + FRAME * len(self._judged)
        frames = [self._buffer.read(at, at + FRAME) for at in range(start, self._buffer.end - FRAME + 1, FRAME)]
        if frames:
            likelihoods = self.recognizer.judge(self._listener, frames)
            self._judged.extend(zip(likelihoods, map(decibels, frames), strict=True))

    def _do_all(self, partials: bool) -> None:
        """Work leaves the queue once it is done, so that an error in the model loses none."""
        while self._work:
            task = self._work[0]
            if isinstance(task, Cut):
                self._cut(task)
            elif isinstance(task, Resume):
                self._resume()
            elif partials:
                self._look(task)
            self._work.popleft()

    def _spend(self) -> float:
        """Seconds of the stream at which what was computed last is ready, on the compute-aware clock."""
        now = self.recognizer.timer()
        seconds, self._mark = now - self._mark, now
        self.stats.compute_seconds += seconds
        self.stats.audio_seconds = self.time
        return self._clock.spend(self.time, seconds)

    def _look(self, look: Look) -> None:
        segment, adapter = self._open(), self.recognizer.adapter
        encoded, heard = self._hear(segment, look.start, look.end, look.settled or not adapter.delayed)
        prompt = tuple(adapter.in_language(segment.prompt, heard.language))
        told, ahead = (heard.tokens, heard.ended, heard.settled), segment.ahead()
        of_segment = SegmentHypothesis(adapter, encoded, prompt, *told, ahead)
        with self.recognizer.lock:  # a policy may ask the model
            segment.commitment.update(of_segment)
        self.stats.partial_decodes += 1
        partial = segment.partial(self._segmenter.position / RATE)
        segment.note(self.stats, self.time, self._spend())
        if partial is not None:
            self._events.append(partial)
        if look.settled and (self._total is None or look.end <= self._total):  # not filled up with silence
            self._tell_early(segment, look)

    def _tell_early(self, segment: Segment, look: Look) -> None:
        _, hypothesis = self._hear_finally(segment, look.start, look.end)
        text = self.recognizer.adapter.text(hypothesis.tokens).strip()
        if ends_sentence(text):
            segment.eager = (self.time, self._spend())
            self.stats.eagers += 1
            self._events.append(Eager(text, self._segmenter.speech_end / RATE))

    def _use_pause(self) -> None:
        """Find the words of what was told early, a frame later, so that neither it nor the final waits for them."""
        if not self._work and self._segment is not None and self._segment.eager and self._segment.final:
            self._words(self._segment, *self._segment.final[0])

    def _resume(self) -> None:
        """What was told early was not the whole."""
        if self._segment is not None and self._segment.eager is not None:
            self._segment.eager = None
            self._events.append(Resumed(self._segmenter.position / RATE))

    def _cut(self, cut: Cut) -> None:
        segment = self._open()
        draft = segment.draft  # of what is behind the cut too
        _, hypothesis = self._hear_finally(segment, cut.start, cut.end)
        words = self._words(segment, cut.start, cut.end)
        text = self.recognizer.adapter.text(hypothesis.tokens).strip()
        goes_on = self._segmenter.start is not None and not cut.paused
        if goes_on:
            self._resume()
        if cut.paused:
            self._events.append(Endpoint(cut.speech_end / RATE))
        if text or segment.shown:
            span = cut.start / RATE, cut.end / RATE
            self._events.append(Final(text, tuple(words), *span, hypothesis.tokens, hypothesis.language))
        self._rejoined.add(cut.start, cut.end, hypothesis)
        carried = segment.carried(text) if goes_on else 0
        self._count(segment, cut, words, len(segment.times) - carried)
        # Behind a pause models do without; there a text before makes small ones repeat themselves.
        self._history = last_words(f"{self._history} {text}".strip(), self.recognizer.context) if goes_on else ""
        self._segment = self._begin(segment.last(carried)) if goes_on else None
        if self._segment is not None:
            self._segment.follow(segment, carried, remainder(draft, hypothesis.tokens), text, cut.end - cut.start)
            if partial := self._segment.partial(self._segmenter.position / RATE):
                self._events.append(partial)

    def _open(self) -> Segment:
        if self._segment is None:
            self._segment = self._begin()
            self._segment.began = self._segmenter.speech_start / RATE
        return self._segment

    def _begin(self, promised: Sequence[str] = ()) -> Segment:
        """A new segment, which keeps what was promised of it while it was part of the one before."""
        prompt = tuple(self.recognizer.adapter.prompt(self._history))
        return Segment(prompt, self.recognizer.policy.begin(promised), self.recognizer.growing())

    def _count(self, segment: Segment, cut: Cut, words: list[Word], promised: int) -> None:
        """Statistics of a segment, of whose words `promised` were shown as stable before."""
        stats, ready = self.stats, self._spend()
        stats.finals += 1
        stats.decoded_seconds += (cut.end - cut.start) / RATE
        segment.count(stats, words, promised, self.time, ready)
        if cut.paused or self._total is not None:
            stats.finalisation.add(cut.speech_end / RATE, self.time, ready)
            if segment.eager is not None:
                stats.eager.add(cut.speech_end / RATE, *segment.eager)

    def _words(self, segment: Segment, start: int, end: int) -> list[Word]:
        """Words of the final with times of the stream, inside the segment and in order; made once of a hypothesis."""
        encoded, hypothesis = self._hear_finally(segment, start, end)
        if segment.words is None or segment.words[0] is not hypothesis:
            told = self.recognizer.adapter.in_language(segment.prompt, hypothesis.language)
            found = self.recognizer.words(encoded, hypothesis.tokens, told)
            segment.words = hypothesis, [word.between(start / RATE, end / RATE) for word in found]
        return segment.words[1]

    def _hear(self, segment: Segment, start: int, end: int, ends: bool = True) -> tuple[Encoded, Hypothesis]:
        """A hypothesis of these samples; the last one where it was of the same."""
        if segment.heard is None or segment.span != (start, end, ends):
            samples = self._buffer.read(start, end)
            if isinstance(segment.audio, GrowingAudio):
                segment.audio.ends = ends
            encoded, hypothesis = self.recognizer.hear(samples, segment.prompt, segment.draft, segment.audio)
            segment.span, segment.heard = (start, end, ends), (encoded, hypothesis)
            segment.draft = hypothesis.tokens
            self.stats.decoder_calls += hypothesis.forwards
            self.stats.tokens += len(hypothesis.tokens)
            self.stats.accepted += hypothesis.accepted
        return segment.heard

    def _hear_finally(self, segment: Segment, start: int, end: int) -> tuple[Encoded, Hypothesis]:
        """The final hypothesis of these samples, which may know the speech before them."""
        encoded, alone = self._hear(segment, start, end)
        if segment.final is None or segment.final[0] != (start, end):
            final = self._rejoined.hear(self._buffer, start, end, alone)
            self.stats.decoder_calls += final.forwards - alone.forwards
            segment.final = (start, end), final
        return encoded, segment.final[1]
