"""Where things are in recognisers with a CTC head."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, ClassVar

import torch

from mmaccel.adapter import register_adapter

from .rows import CTC
from .timed import TimedToken, WholeAdapter


@register_adapter
class CtcAdapter(WholeAdapter):
    """Connectionist Temporal Classification (Graves et al., 2006): Wav2Vec2, HuBERT, Parakeet and others.

    Each frame has a token or a blank; equal tokens in a row are one. Exact: the tokens are those of the model's
    likeliest frames (`logits.argmax(-1)`, or its `generate`), and times are those of the frames. Encoders that look at
    the whole audio hear the segment again at each update.
    """

    family = "ctc"
    classes: ClassVar[tuple[str, ...]] = CTC
    advice: ClassVar[str] = "its text takes no decoder, so nothing of it can be drafted or left out"

    def _hear(self, samples: torch.Tensor) -> list[TimedToken]:
        frames = self._frames(self._features(samples))
        length, place, found = samples.numel() / max(len(frames), 1), 0, []
        blank = self.target.config.pad_token_id
        for token, run in groupby(frames):
            end = place + sum(1 for _ in run)
            if token != blank:
                found.append(TimedToken(token, round(place * length), round(end * length)))
            place = end
        return found

    def _frames(self, features: Mapping[str, Any]) -> list[int]:
        """The likeliest token of each frame."""
        # those that pad by themselves say in their own `generate` which frames are padding
        own = "generate" in vars(type(self.target))
        ids = self.target.generate(**features) if own else self.target(**features).logits.argmax(-1)
        return ids[0].tolist()
