"""Speech that sounds while its codes are generated."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.errors import MmaccelError, SettingError

from .first_byte_meter import FirstByteMeter
from .growing_blocks import growing_blocks
from .speakers import speaker_of
from .streaming_codec_decoder import CodecStream, StreamingCodecDecoder

# One stream at a time for each model, also where several objects speak with it: its methods are wrapped meanwhile.
_TURNS: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()


class StreamingSpeech:
    """Hear a speech generator from its first frame on; the sound is that of generating all, then decoding it.

    Frames are those of `model.generate` from the same random state, token for token. They become sound as they come, by
    :class:`~mmaccel.speech.StreamingCodecDecoder`, up to rounding. CSM's depth decoder is prepared once for a text
    instead of for each frame. While a stream is open methods of the model are wrapped; then it is as it was.

    Parameters
    ----------
    model
        A `CsmForConditionalGeneration` (Sesame CSM, 2025), a `MoshiForConditionalGeneration` (Moshi, 2024), which
        hears its user's part as far as the prompt has it, or a `PocketTTSForConditionalGeneration` (Continuous Audio
        Language Models, 2025).
    codec
        The codec of a model that brings none: for Pocket TTS ``processor.audio_tokenizer``. Default the model's own.

    Attributes
    ----------
    meter
        Time to the first sound and gaps of the last stream, a :class:`~mmaccel.speech.FirstByteMeter`.
    generated
        What `generate` returned at the end of the last stream, such as codes `[B, frames, codebooks]`; None before.

    Raises
    ------
    UnsupportedTargetError
        If the model is another one, or its codec cannot be decoded block by block.
    SettingError
        If the codec is missing.

    Examples
    --------
    >>> voice = speech.StreamingSpeech(csm)  # doctest: +SKIP
    >>> for audio in voice.stream(**inputs, max_new_tokens=125):  # doctest: +SKIP
    ...     play(audio)  # [B, channels, samples] at voice.sample_rate
    >>> print(voice.meter)  # doctest: +SKIP
    """

    def __init__(self, model: Any, codec: Any = None) -> None:
        self.speaker = speaker_of(model, codec)
        self.decoder = StreamingCodecDecoder(self.speaker.codec)
        self.meter = FirstByteMeter(self.sample_rate)
        self.generated: Any = None
        self._turn = _TURNS.setdefault(model, threading.Lock())

    @property
    def sample_rate(self) -> int:
        """Samples a second of the sound."""
        return self.decoder.sample_rate

    def stream(self, blocks: Iterable[int] | None = None, **inputs: Any) -> Iterator[torch.Tensor]:
        """Generate, and yield the sound of each block, `[B, channels, samples]`.

        Generating goes on in a thread, ahead of whoever takes the blocks; it stops when the iterator is closed. A row
        of a batch that has ended goes on with codes 0 until all have: cut it where its codes end.

        Parameters
        ----------
        blocks
            Frames of each block; default :func:`~mmaccel.speech.growing_blocks`: one of 80 ms first, then up to 8.
        inputs
            Arguments of `model.generate`, such as what the processor made and `max_new_tokens`.

        Raises
        ------
        SettingError
            If `inputs` ask for a streamer or for all of the sound, or codes are drawn that the codec does not have.
        MmaccelError
            While another stream of this model is open.
        """
        if inputs.get("streamer") is not None:
            raise SettingError("streamer=...: stream() brings its own; leave it out")
        self.speaker.check(inputs)
        return self._blocks(growing_blocks() if blocks is None else blocks, inputs)

    def _blocks(self, blocks: Iterable[int], inputs: dict[str, Any]) -> Iterator[torch.Tensor]:
        if not self._turn.acquire(blocking=False):
            raise MmaccelError("this model speaks already: close that stream, or take all of it, first")
        run = _Run(self, blocks)
        thread = threading.Thread(target=run.generate, args=(inputs,), name="mmaccel speech out", daemon=True)
        try:
            self.meter.restart()
            thread.start()  # which raises where there are too many
            while (audio := run.ready.get()) is not None:
                yield audio
            if run.error is not None:
                raise run.error
        finally:
            run.left.set()
            if thread.ident is not None:
                thread.join()
            self._turn.release()


class _Left(Exception):  # noqa: N818  no error: nobody listens any more
    pass


class _Run:
    """One stream: what is generated in a thread, and the sound that is ready."""

    def __init__(self, voice: StreamingSpeech, blocks: Iterable[int]) -> None:
        self.voice, self.blocks = voice, blocks
        self.ready: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self.left = threading.Event()
        self.error: Exception | None = None
        self._stream: CodecStream | None = None
        kind = voice.speaker.model.device.type
        # Autocast holds in the thread that entered it only: the one that generates enters that of who asked.
        dtype, is_on = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self.autocast = torch.autocast(kind, dtype=dtype, enabled=is_on)

    def generate(self, inputs: dict[str, Any]) -> None:
        speaker = self.voice.speaker
        try:
            with self.autocast:
                with ExitStack() as stack:
                    self.voice.generated = speaker.model.generate(**inputs, **speaker.follow(stack, self._take))
                if self._stream is not None:
                    self._give(self._stream.finish())
        except _Left:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.ready.put(None)

    def _take(self, frame: torch.Tensor) -> None:
        """A frame `[B, Q, 1]`."""
        if self.left.is_set():
            raise _Left
        if self._stream is None:
            self._stream = self.voice.decoder.stream(len(frame), self.blocks)
        self._give(self._stream.push(frame.to(self.voice.decoder.model.device)))

    def _give(self, audio: torch.Tensor) -> None:
        if audio.shape[-1]:
            self.voice.meter.add(audio)
            self.ready.put(audio)
