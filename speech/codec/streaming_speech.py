"""Speech that sounds while its codes are generated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmaccel.errors import SettingError

from .first_byte_meter import FirstByteMeter
from .growing_blocks import growing_blocks
from .speakers import speaker_of
from .spoken_stream import SpokenStream
from .streaming_codec_decoder import StreamingCodecDecoder, sizes_of


class StreamingSpeech:
    """Hear a speech generator from its first frame on; the sound is that of generating all, then decoding it.

    Frames are those of `model.generate` from the same random state, token for token, as long as nothing else draws
    from it meanwhile. They become sound as they come, by :class:`~mmaccel.speech.StreamingCodecDecoder`, up to
    rounding; the fade-in of Pocket TTS's processor is left out. CSM's depth decoder is prepared once for a text instead
    of for each frame. While a stream is open methods of the model are wrapped, which calls of other threads do not
    notice (Moshi itself keeps what it generates, and can do one thing at a time); then it is as it was.

    Parameters
    ----------
    model
        A `CsmForConditionalGeneration` (Sesame CSM, 2025), a `MoshiForConditionalGeneration` (Moshi, 2024), which
        hears its user's part as far as the prompt has it, or a `PocketTTSForConditionalGeneration` (Continuous Audio
        Language Models, 2025) or its kin, a `GradiumPhononTTSForConditionalGeneration`.
    codec
        The codec of a model that brings none: for these two ``processor.audio_tokenizer``. Default the model's own.

    Attributes
    ----------
    meter
        Time to the first sound and gaps of the last stream, a :class:`~mmaccel.speech.FirstByteMeter`.
    generated
        What `generate` returned at the end of the last stream, such as codes `[B, frames, codebooks]`; None before that
        end, and where it was not reached.

    Raises
    ------
    UnsupportedTargetError
        If the model is another one, or its codec cannot be decoded block by block.
    SettingError
        If the codec is missing, or one of another kind.

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
        self.speaker.check_codec(self.decoder.frames)
        self.meter = FirstByteMeter(self.sample_rate)
        self.generated: Any = None

    @property
    def sample_rate(self) -> int:
        """Samples a second of the sound."""
        return self.decoder.sample_rate

    def stream(self, blocks: Iterable[int] | None = None, **inputs: Any) -> SpokenStream:
        """Generate, and yield the sound of each block, `[B, channels, samples]`.

        Generating begins with the first block asked for and goes on in a thread, ahead of whoever takes the blocks; it
        stops when the iterator is closed, from any thread, or dropped. A row of a batch that has ended goes on with
        codes 0 until all have: cut it where its codes end.

        Parameters
        ----------
        blocks
            Frames of each block; default :func:`~mmaccel.speech.growing_blocks`: one of 80 ms first, then up to 8.
        inputs
            Arguments of `model.generate`, such as what the processor made and `max_new_tokens`.

        Raises
        ------
        SettingError
            If `inputs` ask for a streamer or for all of the sound, codes are drawn that the codec does not have, or a
            block is no whole number of frames.
        MmaccelError
            While another stream of this model generates.
        """
        if inputs.get("streamer") is not None:
            raise SettingError("streamer=...: stream() brings its own; leave it out")
        self.speaker.check(inputs)
        return SpokenStream(self, growing_blocks() if blocks is None else sizes_of(blocks), inputs)
