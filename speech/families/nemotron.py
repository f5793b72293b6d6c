"""A cache-aware FastConformer transducer on a stream of audio: tokens that stay, many streams on one model."""

from __future__ import annotations

import copy
from typing import Any

import torch

from mmaccel.cache.argument import cache_of, cached
from mmaccel.decoding.setting import pass_device
from mmaccel.errors import SettingError
from mmaccel.machine import unrounded

from ..decoding.transducer_greedy import EmittedToken, TransducerGreedy
from .timed import as_states, timed


class NemotronStream:
    """Push audio to a `NemotronAsrStreamingForRNNT`, get its tokens (Noroozi et al., cache-aware FastConformer, 2024).

    The library's own streaming pulls chunks out of a generator and keeps its state on the model. Here audio is
    pushed, in pieces of any size, and each stream has its own caches. Exact: the tokens are those of `generate` with
    the same lookahead on the whole audio, followed by silence up to the end of the last chunk. A transducer never
    takes a word back.

    Parameters
    ----------
    model, processor
        The model, and what prepares its audio. Neither is changed.
    lookahead
        Encoder frames of 80 ms that a frame may look ahead, one of those that the model was trained with: 13, 6, 1
        or 0, for latencies of 1120, 560, 160 or 80 ms. Default 1.
    **features
        What else `get_audio_features` is given, such as the `prompt_ids` of a language.

    Attributes
    ----------
    samples
        Samples that were pushed.

    Raises
    ------
    SettingError
        If the model was not trained with the lookahead, or samples are not one row of floats.

    Examples
    --------
    >>> stream = NemotronStream(model, processor, lookahead=6)  # doctest: +SKIP
    >>> for chunk in microphone:  # doctest: +SKIP
    ...     tokens += stream.hear(chunk)
    >>> tokens += stream.rest()  # doctest: +SKIP
    """

    def __init__(self, model: Any, processor: Any, lookahead: int = 1, **features: Any) -> None:
        supported = getattr(processor, "supported_num_lookahead_tokens", (13, 6, 1, 0))
        if lookahead not in supported:
            known = ", ".join(str(number) for number in supported)
            raise SettingError(f"NemotronStream(lookahead={lookahead!r}): the model was trained with {known}")
        self.model, self.processor, self.lookahead, self._features = model, processor, lookahead, features
        self.factor = int(model.config.encoder_config.subsampling_factor)
        extractor = processor.feature_extractor
        self.samples = self._mels = 0
        # Half a window of silence, as a centred one begins.
        self._samples = torch.zeros(extractor.n_fft // 2, device="cpu")
        self._caches: dict[str, Any] = {}
        self._greedy = TransducerGreedy(model)

    def push(self, samples: torch.Tensor) -> torch.Tensor:
        """The new tokens of :meth:`hear` as rows `[1, t, 3]` of token, first and last sample."""
        return as_states(timed(self.hear(samples), self.model, self.processor))

    def peek(self) -> torch.Tensor:
        """The rows `[1, t, 3]` that would follow if the audio ended now; the stream goes on as before."""
        return as_states(timed(self.ahead().rest(), self.model, self.processor))

    @torch.no_grad()
    def hear(self, samples: torch.Tensor) -> list[EmittedToken]:
        """Push `samples` `[n]` at the processor's rate; returns the new tokens with their frames."""
        self.samples += len(samples)
        return self._hear(samples.float().cpu())

    @torch.no_grad()
    def rest(self) -> list[EmittedToken]:
        """The last tokens with their frames: the last chunk is filled up with silence, and nothing follows."""
        found: list[EmittedToken] = []
        while self._mels < self.samples // self.processor.feature_extractor.hop_length:
            found += self._hear(self._samples.new_zeros(self._needed() - len(self._samples)))
        return found

    def ahead(self) -> NemotronStream:
        """A stream that goes on from here by itself."""
        other = copy.copy(self)
        other._caches, other._greedy = copy.deepcopy(self._caches), self._greedy.ahead()
        return other

    def _chunk(self) -> int:
        """Mel frames that the encoder takes next."""
        return self.factor * (self.lookahead + 1) if self._mels else 1 + self.factor * self.lookahead

    def _needed(self) -> int:
        """Samples of so many frames, with half a window on each side."""
        extractor = self.processor.feature_extractor
        return int((self._chunk() - 1) * extractor.hop_length + extractor.n_fft)

    def _hear(self, samples: torch.Tensor) -> list[EmittedToken]:
        self._samples = torch.cat([self._samples, samples])
        found: list[EmittedToken] = []
        while len(self._samples) >= self._needed():
            found += self._greedy.say(self._encode())
        return found

    def _encode(self) -> torch.Tensor:
        """Projected encoder frames `[1, t, D]` of the next chunk."""
        extractor, count = self.processor.feature_extractor, self._chunk()
        # samples before the window's first have no weight, so that the missing pre-emphasis of the first is not heard
        given = {"center": False, "sampling_rate": extractor.sampling_rate, "return_tensors": "pt"}
        with unrounded():
            mels = extractor(self._samples[: self._needed()].numpy(), **given).input_features
        self._samples = self._samples[count * extractor.hop_length :].clone()
        self._mels += count
        output = self.model.get_audio_features(
            input_features=mels.to(pass_device(self.model, mels), self.model.dtype),
            num_lookahead_tokens=self.lookahead,
            use_cache=True,
            **self._features,
            **self._caches,
        )
        self._caches = {**cached(cache_of(output)), "padding_cache": output.padding_cache}
        return output.pooler_output
