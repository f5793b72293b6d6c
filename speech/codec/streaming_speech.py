"""Speech that sounds while its codes are generated."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from transformers.generation import BaseStreamer

from mmaccel.errors import MmaccelError, SettingError, UnsupportedTargetError

from .depth_decoding import DepthDecoding
from .first_byte_meter import FirstByteMeter
from .growing_blocks import growing_blocks
from .streaming_codec_decoder import CodecStream, StreamingCodecDecoder


class StreamingSpeech:
    """Hear a speech generator from its first frame on; the sound is that of generating all, then decoding it.

    The codes are those of `model.generate` from the same random state, token for token: its depth decoder is prepared
    once for a text instead of for each frame (:class:`~mmaccel.speech.codec.depth_decoding.DepthDecoding`). They become
    sound as they come, by :class:`~mmaccel.speech.StreamingCodecDecoder`, up to rounding. While a stream is open the
    depth decoder's `generate` is wrapped; then the model is as it was.

    Parameters
    ----------
    model
        A `CsmForConditionalGeneration` (Sesame CSM, 2025).

    Attributes
    ----------
    meter
        Time to the first sound and gaps of the last stream, a :class:`~mmaccel.speech.FirstByteMeter`.
    codes
        Of the last stream, `[B, frames, codebooks]`, as `generate` returns them.

    Raises
    ------
    UnsupportedTargetError
        If the model is another one, or its codec cannot be decoded block by block.

    Examples
    --------
    >>> voice = speech.StreamingSpeech(csm)  # doctest: +SKIP
    >>> for audio in voice.stream(**inputs, max_new_tokens=125):  # doctest: +SKIP
    ...     play(audio)  # [B, channels, samples] at voice.sample_rate
    >>> print(voice.meter)  # doctest: +SKIP
    """

    def __init__(self, model: Any) -> None:
        if not any(cls.__name__ == "CsmForConditionalGeneration" for cls in type(model).__mro__):
            raise UnsupportedTargetError(
                f"no streaming speech for {type(model).__name__}: give a CsmForConditionalGeneration, such as"
                " CsmForConditionalGeneration.from_pretrained('sesame/csm-1b')"
            )
        self.model, self.decoder = model, StreamingCodecDecoder(model.codec_model)
        self.meter = FirstByteMeter(self.sample_rate)
        self.codes: torch.Tensor | None = None
        self._turn = threading.Lock()

    @property
    def sample_rate(self) -> int:
        """Samples a second of the sound."""
        return self.decoder.sample_rate

    def stream(self, blocks: Iterable[int] | None = None, **inputs: Any) -> Iterator[torch.Tensor]:
        """Generate, and yield the sound of each block, `[B, channels, samples]`; silence behind the end of a row.

        Generating goes on in a thread, ahead of whoever takes the blocks; it stops when the iterator is closed.

        Parameters
        ----------
        blocks
            Frames of each block; default :func:`~mmaccel.speech.growing_blocks`: one of 80 ms first, then up to 8.
        inputs
            Arguments of `model.generate`, such as what the processor made and `max_new_tokens`.

        Raises
        ------
        SettingError
            If `inputs` ask for a streamer or for sound, or codes are drawn that the codec has no sound for.
        MmaccelError
            While another stream of this model is open.
        """
        for name in ("streamer", "output_audio", "return_dict_in_generate"):
            if inputs.get(name):
                raise SettingError(f"{name}={inputs[name]!r}: stream() brings its own; leave it out")
        return self._blocks(growing_blocks() if blocks is None else blocks, inputs)

    def _blocks(self, blocks: Iterable[int], inputs: dict[str, Any]) -> Iterator[torch.Tensor]:
        if not self._turn.acquire(blocking=False):
            raise MmaccelError("this model speaks already: close that stream, or take all of it, first")
        frames = _Frames(self, blocks)
        thread = threading.Thread(target=frames.generate, args=(inputs,), name="mmaccel speech out", daemon=True)
        try:
            self.meter.restart()
            thread.start()
            while (audio := frames.ready.get()) is not None:
                yield audio
            if frames.error is not None:
                raise frames.error
        finally:
            frames.left.set()
            thread.join()
            self._turn.release()


class _Left(Exception):  # noqa: N818  no error: nobody listens any more
    pass


class _Frames(BaseStreamer):
    """Turns codes into sound as `generate` hands them over, frame by frame."""

    def __init__(self, voice: StreamingSpeech, blocks: Iterable[int]) -> None:
        self.voice, self.blocks = voice, blocks
        self.ready: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self.left = threading.Event()
        self.error: Exception | None = None
        self._has_prompt = False
        self._stream: CodecStream | None = None
        self._live = torch.ones(0, dtype=torch.bool)

    def generate(self, inputs: dict[str, Any]) -> None:
        model = self.voice.model
        try:
            with ExitStack() as stack:
                DepthDecoding(model.depth_decoder).attach(stack)
                self.voice.codes = model.generate(**inputs, streamer=self)
            if self._stream is not None:
                self._give(self._stream.finish())
        except _Left:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.ready.put(None)

    def put(self, value: torch.Tensor) -> None:
        """The prompt first, then the codes of a frame `[B, codebooks]`."""
        if self.left.is_set():
            raise _Left
        if not self._has_prompt:
            self._has_prompt = True
            return
        if self._stream is None:
            self._stream = self.voice.decoder.stream(len(value), self.blocks)
            self._live = torch.ones(len(value), dtype=torch.bool)
        self._live &= ~(value == self.voice.model.config.codebook_eos_token_id).all(-1)
        if self._live.any():
            codes = value.where(self._live[:, None], 0)  # ended rows have codes that are none
            self._give(self._stream.push(codes[..., None].to(self.voice.model.device)))

    def end(self) -> None:
        """The codes have ended."""

    def _give(self, audio: torch.Tensor) -> None:
        if audio.shape[-1]:
            self.voice.meter.add(audio)
            self.ready.put(audio)
