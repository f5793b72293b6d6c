"""Speech from the frames of a codec block by block, sample for sample equal to decoding all of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache

from mmaccel.cache.argument import cached
from mmaccel.cache.layers import layer_bytes
from mmaccel.errors import MmaccelError, SettingError, UnsupportedTargetError
from mmaccel.linears.packed import with_packed_linears
from mmaccel.method import is_count, plain_number
from mmaccel.stepping.tensors import count_bytes

from ..families.private import mimi_decoder_parts
from .blockwise_convolution import BlockwiseConvolution
from .frames import Frames, frames_of

PAD_MODES = ("constant", "replicate")


@dataclass
class CodecState:
    """State that a stream carries from block to block; bounded, however long the stream."""

    cache: DynamicCache
    carries: dict[int, torch.Tensor | None] = field(default_factory=dict)

    def nbytes(self) -> int:
        """Bytes held: ends of blocks, and keys and values of the sliding window."""
        return count_bytes(self.carries) + layer_bytes(self.cache.layers)


class StreamingCodecDecoder:
    """Decode Mimi codes in blocks of any sizes, exactly as `model.decode` decodes all of them at once.

    Mimi (Moshi: a speech-text foundation model for real-time dialogue, 2024) is causal, so each block needs only what
    its layers saw last: every convolution carries its left context, and the transformer its keys and values within the
    sliding window. `model.decode` carries the last of these only, and is wrong at each seam. Exact to float32
    rounding; the model is not changed, and serves any number of streams, taken in turns. On a CPU in float32 it
    keeps a second copy of the matrix weights in oneDNN's layout (150 MB for Mimi).

    Parameters
    ----------
    model
        A causal `MimiModel`, such as the `codec_model` of a speech generator, or the `PocketTTSAudioTokenizerModel` of
        Pocket TTS, whose frames are latents `[B, D, T]` in place of codes.

    Raises
    ------
    UnsupportedTargetError
        If the model is another one, has no decoder, or is not causal.

    Examples
    --------
    >>> decoder = speech.StreamingCodecDecoder(model)  # doctest: +SKIP
    >>> with decoder.stream(blocks=speech.growing_blocks()) as stream:  # doctest: +SKIP
    ...     for codes in generator:  # [1, Q, 1], as they are generated
    ...         play(stream.push(codes))
    ...     play(stream.finish())
    """

    def __init__(self, model: Any) -> None:
        self.frames: Frames = frames_of(model)
        self.model = model
        upsample, transformer, layers = mimi_decoder_parts(model)
        self.upsample: list[Any] = [] if upsample is None else [upsample]
        self.layers: list[Any] = list(layers)
        for layer in self.upsample + self.layers:
            _check_layer(layer)
        self.transformer = with_packed_linears(transformer)
        self._convolutions = {
            id(layer): BlockwiseConvolution(layer.conv, getattr(layer, "pad_mode", "constant"))
            for layer in self._all_layers()
            if hasattr(layer, "conv")
        }

    @property
    def sample_rate(self) -> int:
        """Samples a second of the audio."""
        return int(self.model.config.sampling_rate)

    @property
    def frame_samples(self) -> int:
        """Samples of audio that one frame of codes makes."""
        return math.prod(convolution.stride for convolution in self._convolutions.values())

    def _all_layers(self) -> Iterator[Any]:
        for layer in self.upsample + self.layers:
            yield layer
            if _is(layer, "ResnetBlock"):
                yield from (layer.shortcut, *layer.block)

    def stream(self, batch: int = 1, blocks: Iterable[int] | None = None) -> CodecStream:
        """Begin a stream of `batch` signals that grow together.

        Parameters
        ----------
        batch
            How many signals, default 1.
        blocks
            Sizes in frames of the blocks to decode, such as :func:`~mmaccel.speech.growing_blocks`; codes wait
            until a block is full. By default pushed codes are decoded at once.
        """
        if not is_count(batch):
            raise SettingError(f"stream(batch={batch!r}): batch must be an integer of at least 1")
        return CodecStream(self, batch, None if blocks is None else sizes_of(blocks))

    @torch.no_grad()
    def decode(self, codes: torch.Tensor, state: CodecState) -> torch.Tensor:
        """The next block: codes `[B, Q, T]`, T at least 1, to audio `[B, channels, T * frame_samples]`."""
        hidden_states = self.frames.states(codes)
        for layer in self.upsample:
            hidden_states = self._layer(layer, hidden_states, state)
        inner = self.transformer(hidden_states, **cached(state.cache), use_cache=True)
        hidden_states = inner.last_hidden_state
        for layer in self.layers:
            hidden_states = self._layer(layer, hidden_states, state)
        return hidden_states.transpose(1, 2)

    def _layer(self, layer: Any, hidden_states: torch.Tensor, state: CodecState, own: bool = True) -> torch.Tensor:
        """`own` states may be overwritten: new memory for a long signal takes longer than the arithmetic."""
        key = id(layer)
        if key in self._convolutions:
            hidden_states, state.carries[key] = self._convolutions[key](hidden_states, state.carries.get(key))
            return hidden_states
        if _is(layer, "ResnetBlock"):
            residual = self._layer(layer.shortcut, hidden_states, state)
            for number, inner in enumerate(layer.block):
                hidden_states = self._layer(inner, hidden_states, state, own=number > 0)
            return residual + hidden_states
        if isinstance(layer, nn.ELU):
            return F.elu(hidden_states, layer.alpha, inplace=own)
        return layer(hidden_states)


class CodecStream:
    """A stream of :class:`StreamingCodecDecoder`.

    Attributes
    ----------
    frames
        Frames of codes that were decoded.
    waiting
        Frames that wait until a block is full.
    """

    def __init__(self, decoder: StreamingCodecDecoder, batch: int, blocks: Iterator[int] | None) -> None:
        self.decoder, self.batch, self.frames = decoder, batch, 0
        self._blocks, self._pending, self._size = blocks, list[torch.Tensor](), 0
        self._state: CodecState | None = CodecState(DynamicCache(config=decoder.model.config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._state, self._pending = None, []

    @property
    def waiting(self) -> int:
        return sum(codes.shape[-1] for codes in self._pending)

    def nbytes(self) -> int:
        """Bytes that the stream holds between blocks; 0 once it is finished."""
        return 0 if self._state is None else self._state.nbytes()

    def push(self, codes: torch.Tensor) -> torch.Tensor:
        """Push codes; returns the audio of the blocks that are full.

        Parameters
        ----------
        codes
            `[B, Q, T]` of integers, Q at most the model's number of codebooks; T may be 0.

        Returns
        -------
        torch.Tensor
            `[B, channels, samples]`, which may be 0 samples.

        Raises
        ------
        SettingError
            If the codes have another shape or type, or are not in the codebooks; the stream does not change.
        MmaccelError
            If the stream is finished, also by an error in the middle of a block.
        """
        self._check(codes)
        self._pending.append(codes)
        return self._join(self._take())

    def finish(self) -> torch.Tensor:
        """The audio of codes that still wait, `[B, channels, samples]`; ends the stream."""
        audio = self._join([self._decode(self._gather(self.waiting))] if self.waiting else [])
        self._state, self._pending = None, []
        return audio

    def _take(self) -> list[torch.Tensor]:
        if self._blocks is None:
            return [self._decode(self._gather(self.waiting))] if self.waiting else []
        audio = []
        while self.waiting:
            self._size = self._size or self._next_size()
            if self.waiting < self._size:
                break
            audio.append(self._decode(self._gather(self._size)))
            self._size = 0
        return audio

    def _next_size(self) -> int:
        """Frames of the next block; all that wait where no more sizes are given."""
        assert self._blocks is not None
        size = next(self._blocks, self.waiting)
        if not is_count(plain_number(size)):
            raise SettingError(f"a block of {size!r} frames: blocks are whole numbers of at least 1, such as [1, 2, 4]")
        return int(size)

    def _gather(self, size: int) -> torch.Tensor:
        """The first frames of those that wait."""
        codes = torch.cat(self._pending, -1)
        self._pending = [codes[..., size:]] if codes.shape[-1] > size else []
        return codes[..., :size]

    def _decode(self, codes: torch.Tensor) -> torch.Tensor:
        try:
            audio = self.decoder.decode(codes, self._live())
        except BaseException:  # some layers may have carried on, and others not: no block fits behind
            self._state, self._pending = None, []
            raise
        self.frames += codes.shape[-1]
        return audio

    def _live(self) -> CodecState:
        if self._state is None:
            raise MmaccelError("this stream is finished, or broke off: begin another with decoder.stream()")
        return self._state

    def _join(self, audio: list[torch.Tensor]) -> torch.Tensor:
        if audio:
            return torch.cat(audio, -1)
        model = self.decoder.model
        return torch.empty(self.batch, model.config.audio_channels, 0, device=model.device, dtype=model.dtype)

    def _check(self, codes: torch.Tensor) -> None:
        self._live()
        self.decoder.frames.check(codes, self.batch)
        if self._pending and self._pending[0].shape[1] != codes.shape[1]:
            raise SettingError(
                f"{codes.shape[1]} codebooks after {self._pending[0].shape[1]}: push the same number each time"
            )


def sizes_of(blocks: Iterable[int]) -> Iterator[int]:
    """The sizes of blocks one by one; raises a `SettingError` for what has none."""
    if not isinstance(blocks, Iterable):
        raise SettingError(f"blocks={blocks!r}: give the frames of each block, such as [1, 2, 4]")
    return iter(blocks)


def _is(module: Any, name: str) -> bool:
    """Whether a module is of a class of Mimi's, or of the same class under the name of another family."""
    return hasattr(module, "conv" if "Conv" in name else "block") and type(module).__name__.endswith(name)


def _check_layer(layer: Any) -> None:
    """Refuse a layer that would need something else to be carried."""
    if _is(layer, "ResnetBlock"):
        for inner in [layer.shortcut, *layer.block]:
            _check_layer(inner)
    elif _is(layer, "Conv1d"):
        if layer.pad_mode not in PAD_MODES or layer.conv.stride[0] != 1:
            raise UnsupportedTargetError(
                f"pad_mode={layer.pad_mode!r}, stride {layer.conv.stride[0]}: block by block the decoder pads with"
                f" {' or '.join(PAD_MODES)} at stride 1"
            )
    elif not (_is(layer, "ConvTranspose1d") or isinstance(layer, nn.ELU | nn.Identity)):
        raise UnsupportedTargetError(f"a {type(layer).__name__} in the decoder: no block-wise rule is known for it")
