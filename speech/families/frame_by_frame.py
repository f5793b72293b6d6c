"""Where things are in models that draw one token for each frame of audio: Kyutai STT and Voxtral Realtime."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from mmaccel.adapter import register_adapter
from mmaccel.cache.argument import cache_name, cache_of, cached
from mmaccel.decoding.setting import pass_device
from mmaccel.machine import unrounded

from ..audio.audio import RATE
from ..audio.growing_audio import AudioStream
from ..audio.upsampled import Upsampler
from .rows import CODEC_FRAMES, MEL_FRAMES
from .timed import StreamedAdapter, TimedToken, as_states, features_of

_ONE_PASS = "it draws one token for each frame of audio, so nothing of its text can be drafted"


class FrameStream(ABC):
    """Audio in, tokens out, one for each frame; marks of silence and of word starts are left out.

    A frame's token is drawn once the next frame is there, as `generate` does, which draws none behind the last one.

    Attributes
    ----------
    samples
        Samples taken in.
    passes
        Of the language model, those of :meth:`peek` included.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor
        self.samples = self.passes = self._drawn = 0
        self._ended = False
        self._marks = set(processor.tokenizer.all_special_ids)
        self._caches: dict[str, Any] = {}

    @torch.no_grad()
    def push(self, samples: torch.Tensor) -> torch.Tensor:
        """Take in `samples` `[n]`; returns the tokens `[1, t, 3]` that they complete."""
        self.samples += len(samples)
        return as_states(self._hear(samples.float().cpu()))

    @torch.no_grad()
    def peek(self) -> torch.Tensor:
        """The tokens `[1, t, 3]` that would follow if the audio ended now; the stream goes on as before."""
        other = self._ahead()
        found = other._hear(torch.zeros(self._silence(), device="cpu"))
        self.passes = other.passes
        return as_states(found)

    def _ahead(self) -> FrameStream:
        other = copy.copy(self)
        other._caches = copy.deepcopy(self._caches)
        return other

    @abstractmethod
    def _silence(self) -> int:
        """Samples of silence that the model's own processor puts behind the audio."""

    @abstractmethod
    def _hear(self, samples: torch.Tensor) -> list[TimedToken]:
        """Tokens of the frames that new samples `[n]` complete."""

    def _told(self, logits: torch.Tensor, start: float, size: int) -> tuple[int, list[TimedToken]]:
        """The likeliest token, and as a list of one, or none where it is no text."""
        token = int(logits[0, -1].argmax())
        self._drawn += 1
        self.passes += 1
        ends = self.model.generation_config.eos_token_id
        self._ended |= token in (ends if isinstance(ends, list | tuple) else [ends])
        if self._ended or token in self._marks:
            return token, []
        first = max(round(start), 0)
        return token, [TimedToken(token, first, first + size)]


class CodecFrameStream(FrameStream):
    """Kyutai STT: the language model reads the codes of a frame of Mimi beside the last token."""

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__(model, processor)
        config, extractor = model.config, processor.feature_extractor
        self._size, self._rate = int(config.frame_size), int(extractor.sampling_rate)
        self._before = int((extractor.audio_silence_prefix_seconds or 0) * self._rate)
        self._delay = extractor.audio_delay_seconds or 0
        self._wave, self._upsampler = torch.zeros(self._before, device="cpu"), Upsampler()
        start = model.generation_config.bos_token_id
        self._last = int(config.bos_token_id if start is None else start)
        begun = torch.full((1, config.num_codebooks), int(config.audio_bos_token_id), device="cpu")
        self._codes = begun.to(pass_device(model, begun))

    def _silence(self) -> int:
        return int((self._delay + 1.0) * RATE)

    def _ahead(self) -> FrameStream:
        other: Any = super()._ahead()
        other._upsampler = copy.copy(self._upsampler)
        return other

    def _hear(self, samples: torch.Tensor) -> list[TimedToken]:
        self._wave = torch.cat([self._wave, self._upsampler.push(samples)])
        count = len(self._wave) // self._size
        wave, self._wave = self._wave[: count * self._size], self._wave[count * self._size :].clone()
        found: list[TimedToken] = []
        for codes in self._coded(wave) if count else ():
            if not self._ended:
                found += self._draw()
            self._codes = codes[None]
        return found

    def _coded(self, wave: torch.Tensor) -> torch.Tensor:
        """Codes `[t, K]` of whole frames `[t * size]`."""
        codec = self.model.codec_model
        values = wave.to(pass_device(codec, wave), codec.dtype)[None, None]
        output = codec.encode(values, use_streaming=True, **self._caches.get("codec", {}))
        self._caches["codec"] = {
            **cached(getattr(output, f"encoder_{cache_name()}"), "encoder_"),
            "padding_cache": output.padding_cache,
        }
        codes: torch.Tensor = output.audio_codes[0].T
        return codes[:, : self.model.config.num_codebooks]

    def _draw(self) -> list[TimedToken]:
        text = torch.tensor([[self._last]], device=self._codes.device)
        ids = torch.cat([text, self._codes], 1)[None]
        output = self.model(input_ids=ids, **cached(self._caches.get("text")), use_cache=True)
        self._caches["text"] = cache_of(output)
        heard = self._drawn * self._size - self._before - self._delay * self._rate
        self._last, found = self._told(output.logits, heard * RATE / self._rate, self._size * RATE // self._rate)
        return found


class MelFrameStream(FrameStream):
    """Voxtral Realtime: the language model reads the sum of the last token and a frame of a causal encoder."""

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__(model, processor)
        nothing = torch.zeros(processor.num_samples_first_audio_chunk, device="cpu").numpy()
        with unrounded():
            given = processor(nothing, is_streaming=True, is_first_audio_chunk=True, return_tensors="pt")
        ids: torch.Tensor = given["input_ids"]
        self._ids = ids.to(pass_device(model, ids))
        self._delay = given["num_delay_tokens"]
        extractor = processor.feature_extractor
        self._mels, self._hop = int(model.config.audio_length_per_tok), int(extractor.hop_length)
        self._size, self._window = self._mels * self._hop, int(extractor.n_fft)
        before = (self._ids.shape[1] - int(processor.num_delay_tokens) - 1) * self._size
        self._wave = torch.zeros(self._window // 2 + before, device="cpu")  # half a window, as a centred one begins
        self._features: torch.Tensor | None = None  # of the frames whose token waits for the next one

    def _silence(self) -> int:
        whole = -self.samples % self._size
        return whole + int(self.processor.num_right_pad_tokens) * self._size + self._window

    def _hear(self, samples: torch.Tensor) -> list[TimedToken]:
        self._wave, found = torch.cat([self._wave, samples]), list[TimedToken]()
        while not self._ended:
            frames = self._mels * (1 if self._features is not None or self._drawn else self._ids.shape[1])
            # the extractor leaves out the last window
            if len(self._wave) < frames * self._hop + self._window:
                break
            features = self._featured(self._wave[: frames * self._hop + self._window])
            self._wave = self._wave[frames * self._hop :].clone()
            if self._features is not None:
                found += self._draw()
            self._features = features
        return found

    def _featured(self, wave: torch.Tensor) -> torch.Tensor:
        extractor = self.processor.feature_extractor
        return features_of(extractor, wave, extractor.sampling_rate, self.model, center=False)["input_features"]

    def _draw(self) -> list[TimedToken]:
        output = self.model(
            input_ids=self._ids,
            input_features=self._features,
            num_delay_tokens=self._delay,
            use_cache=True,
            **self._caches,
        )
        names = (cache_name(), f"encoder_{cache_name()}", "padding_cache")
        self._caches = {name: getattr(output, name) for name in names}
        token, found = self._told(output.logits, self._drawn * self._size, self._size)
        self._ids = torch.tensor([[token]], device=self._ids.device)
        return found


class FrameAdapter(StreamedAdapter):
    """Base of the adapters of models that draw a token for each frame. Exact: the tokens of `generate`.

    Words on the way come with the model's own delay. To have them sooner each look would have to read silence for as
    long, 2.5 s and a second more of Kyutai STT: 44 passes, where half a second of new audio takes six.
    """

    delayed: ClassVar[bool] = True
    advice: ClassVar[str] = _ONE_PASS
    stream: ClassVar[type[FrameStream]]

    def begin(self) -> AudioStream:
        return self.stream(self.target, self._processor())


@register_adapter
class CodecFrameAdapter(FrameAdapter):
    """Kyutai STT, delayed streams of text and of Mimi's codes (Zeghidour et al., 2025).

    Streams have 16,000 samples a second and the codec 24,000: what is above 8 kHz is not heard.
    """

    family = "codec_frames"
    classes: ClassVar[tuple[str, ...]] = CODEC_FRAMES
    stream: ClassVar[type[FrameStream]] = CodecFrameStream


@register_adapter
class MelFrameAdapter(FrameAdapter):
    """Voxtral Realtime (Mistral AI, 2026): a causal encoder, and a token for each 80 ms."""

    family = "mel_frames"
    classes: ClassVar[tuple[str, ...]] = MEL_FRAMES
    stream: ClassVar[type[FrameStream]] = MelFrameStream
