"""Where things are in transducers: Parakeet, whose encoder hears all, and Nemotron, whose encoder hears it once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from mmaccel.adapter import register_adapter
from mmaccel.errors import unknown_name

from ..decoding.transducer_greedy import TransducerGreedy
from .adapter import Encoded
from .languages import AUTO, language_code
from .nemotron import NemotronStream
from .rows import STREAMING_TRANSDUCERS, TRANSDUCERS
from .timed import StreamedAdapter, TimedToken, WholeAdapter, timed

_NO_DECODER = "its joint network is asked about many frames at once, so nothing of it can be drafted or left out"


@register_adapter
class TransducerAdapter(WholeAdapter):
    """Recurrent and token-and-duration transducers (Graves, 2012; Xu et al., 2023): Parakeet.

    The encoder looks at the whole audio and hears the segment again at each update. Exact: the tokens and their frames
    are those of `generate`.
    """

    family = "transducer"
    classes: ClassVar[tuple[str, ...]] = TRANSDUCERS
    advice: ClassVar[str] = _NO_DECODER

    def _hear(self, samples: torch.Tensor) -> list[TimedToken]:
        output = self.target.get_audio_features(**self._features(samples), output_attention_mask=True)
        frames, mask = output.pooler_output, output.attention_mask
        frames = frames if mask is None else frames[:, : int(mask.sum())]
        return timed(TransducerGreedy(self.target).say(frames), self.target, self._processor())


@register_adapter
class StreamingTransducerAdapter(StreamedAdapter):
    """Cache-aware FastConformer transducers (Noroozi et al., 2024): Nemotron streaming.

    What the encoder made of past audio stays, and so do the tokens. Exact: the tokens of `generate` on the whole
    audio, followed by silence up to the end of the last chunk.

    Attributes
    ----------
    lookahead
        Encoder frames of 80 ms that a frame may look ahead, one of those that the model was trained with; default
        None for that of the processor, as its `set_num_lookahead_tokens` chooses it, or the model's own, mostly 13.
        More costs no time at the end of a segment, where silence follows.
    """

    family = "streaming_transducer"
    classes: ClassVar[tuple[str, ...]] = STREAMING_TRANSDUCERS
    advice: ClassVar[str] = _NO_DECODER

    def __init__(self, target: Any, lookahead: int | None = None) -> None:
        super().__init__(target)
        self._lookahead, self.language = lookahead, ""

    @property
    def lookahead(self) -> int:
        """As given, or as the processor was told."""
        if self._lookahead is not None:
            return self._lookahead
        own = self.target.config.encoder_config.default_num_lookahead_tokens
        return int(getattr(self.processor, "default_num_lookahead_tokens", own))

    def instruct(self, language: str | None = None, task: str | None = None, prompt: str = "") -> None:
        known: Mapping[str, int] | None = getattr(self._processor(), "prompt_dictionary", None)
        if known is None:
            super().instruct(language, task, prompt)
            return
        super().instruct(None, task, prompt)
        if language:
            self.language = "" if language == AUTO else _spelled(language, known)

    def language_of(self, encoded: Encoded | None) -> str:
        return language_code(self.language)

    def begin(self) -> NemotronStream:
        known = getattr(self._processor(), "prompt_dictionary", None)
        if known is None:
            return NemotronStream(self.target, self._processor(), self.lookahead)
        prompt = known[self.language] if self.language else self.target.config.default_prompt_id
        return NemotronStream(self.target, self._processor(), self.lookahead, prompt_ids=torch.tensor([prompt]))


def _spelled(language: str, known: Mapping[str, int]) -> str:
    """A language as a processor spells it: the given name in any spelling, its code, or the first of its regions."""
    folded, code = {_folded(name): name for name in known}, language_code(language)
    for name in (folded.get(_folded(language), code), *(one for one in known if one.startswith(f"{code}-"))):
        if name in known:
            return name
    raise unknown_name("language", language, known)


def _folded(language: str) -> str:
    return language.lower().replace("_", "-")
