"""Greedy decoding of a transducer that asks the joint network about many frames at once."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch

from ..families.private import transducer_state

WINDOW = 32  # frames that the joint network is asked about at once: 2.6 s of Parakeet


class EmittedToken(NamedTuple):
    """A token, the frame that it was drawn at, and the one after it."""

    token: int
    frame: int
    end: int


class TransducerGreedy:
    """The text of a transducer's encoder frames; they may come piece by piece. Exact.

    The prediction network stands still while blanks are drawn: one pass of the joint network finds the next token of
    many frames (label-looping, Bataev et al., 2024), where transformers' own loop runs the model for each frame. Token
    and duration transducers (Xu et al., 2023) also say how many frames to go on. As in NeMo, a frame has at most
    `max_symbols_per_step` tokens; `generate` of the latter has no such limit.

    Parameters
    ----------
    model
        With `decoder`, `joint` and `max_symbols_per_step`, such as `ParakeetForTDT`. It is not changed.

    Attributes
    ----------
    last
        The last token, at first the one that generation starts with.
    place
        Frames that are decoded.
    """

    def __init__(self, model: Any) -> None:
        self.model, config = model, model.config
        start = model.generation_config.decoder_start_token_id
        self.last = int(config.blank_token_id if start is None else start)
        self.place = self._symbols = self._seen = 0
        self._durations = list(getattr(config, "durations", ()))
        self._cache, self._predicted = transducer_state(config), False

    @torch.no_grad()
    def say(self, frames: torch.Tensor) -> list[EmittedToken]:
        """Tokens of the next projected encoder frames `[1, t, D]`."""
        first, found = self._seen, list[EmittedToken]()
        self._seen += frames.shape[1]
        while self.place < self._seen:
            found += self._next(frames[:, self.place - first : self.place - first + WINDOW])
        return found

    def ahead(self) -> TransducerGreedy:
        """One that goes on from here by itself."""
        other = copy.copy(self)
        other._cache = copy.deepcopy(self._cache)
        return other

    def _next(self, frames: torch.Tensor) -> list[EmittedToken]:
        """The next token of some frames, or none; their blanks are passed."""
        tokens, steps = self._joined(frames)
        at = 0
        while at < len(tokens) and tokens[at] == self.model.config.blank_token_id:
            self._symbols = 0
            at += max(steps[at], 1)
        begin = self.place + at
        if at >= len(tokens):
            self.place = begin
            return []
        self.last, self._symbols, self._predicted = tokens[at], self._symbols + 1, False
        step = steps[at]
        if not step and self._symbols >= self.model.max_symbols_per_step:
            step = 1
        self._symbols = 0 if step else self._symbols
        self.place = begin + step
        return [EmittedToken(self.last, begin, begin + max(step, 1))]

    def _joined(self, frames: torch.Tensor) -> tuple[list[int], list[int]]:
        """The likeliest token of each frame behind the last one, and how many frames each goes on."""
        if not self._predicted:
            self.model.decoder(torch.tensor([[self.last]], device=frames.device), cache=self._cache)
            self._predicted = True
        states = self._cache.cache
        logits = self.model.joint(encoder_hidden_states=frames[:, :, None], decoder_hidden_states=states[:, None])
        scores = logits[0, :, 0]
        size = scores.shape[-1] - len(self._durations)
        tokens: list[int] = scores[:, :size].argmax(-1).tolist()
        if not self._durations:
            return tokens, [int(token == self.model.config.blank_token_id) for token in tokens]
        return tokens, scores[:, size:].argmax(-1).tolist()
