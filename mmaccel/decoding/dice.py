"""What a text will be drawn with: drafters that have probabilities of their own guess what chance will choose."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .matching import Likely

DEVICES = ("cpu", "cuda")  # on which `torch.multinomial` draws in this way
# Temperature below which all are as this one: the hundredth power of a small share is still above 0.
COLDEST = 0.01


class Dice:
    """The random numbers of the next tokens of a sampled text, looked at before they are used.

    `generate` draws a token as the winner of a race, argmax(p / e) with e ~ Exp(1) for each token of the vocabulary. A
    drafter that runs the same race with its own probabilities guesses what will be drawn, and is right where it would
    be right in a draw from its own (Gumbel coupling, Daliri et al., 2024). The text stays that of the same random
    state, as the model still chooses each token itself, and the state is left as it was.

    Parameters
    ----------
    text
        A sampled text of the loop, alone in its batch, with the processors of `generate`.
    size
        Tokens of the model's vocabulary.

    Examples
    --------
    >>> dice = Dice(text, size=49_152)  # doctest: +SKIP
    >>> token, share = dice.choose(assistant(ids).logits[0, -1], depth=0)  # doctest: +SKIP
    """

    def __init__(self, text: Any, size: int) -> None:
        self.text, self.size, self.device = text, size, text.ids.device
        self.warpers = [each for each in text.processors if _is_warper(type(each))]
        self.temperature = next((each.temperature for each in self.warpers if hasattr(each, "temperature")), 1.0)
        self._generator = torch.Generator(self.device)
        self._ahead: deque[tuple[Tensor, Tensor]] = deque()  # the state before each draw, and its numbers

    def choose(self, logits: Tensor, depth: int) -> tuple[int, float]:
        """The token that will be drawn `depth` tokens after the next one, if these logits are the model's.

        With it comes by how far it wins: its share of its own score and that of the second. Logits of a vocabulary
        with fewer or more tokens at its end are taken as far as the model's goes.
        """
        scores = logits[: self.size].to(self.device, torch.float32)[None]
        scores = functional.pad(scores, (0, self.size - scores.shape[1]), value=-torch.inf)
        for warp in self.warpers:
            scores = warp(self.text.ids, scores)
        race = scores.softmax(-1) / self._numbers(depth)
        best, tokens = race[0].topk(2)
        return int(tokens[0]), float(best[0] / best.sum())

    def times(self, likely: Likely, depth: int) -> list[float]:
        """When each of some tokens would end the race, if these probabilities were the model's; the first wins."""
        if not likely:
            return []
        tokens, shares = (list(values) for values in zip(*likely, strict=True))
        numbers = self._numbers(depth)[0, tokens].tolist()
        power = 1 / max(self.temperature, COLDEST)
        return [number / share**power for number, share in zip(numbers, shares, strict=True)]

    def _numbers(self, depth: int) -> Tensor:
        """Exp(1) `[1, V]` of a coming draw; what was looked at and not yet used is not drawn again."""
        now = _state(self.device)
        while self._ahead and not torch.equal(self._ahead[0][0], now):
            self._ahead.popleft()
        if not self._ahead:
            self._generator.set_state(now)
        while len(self._ahead) <= depth:
            before = self._generator.get_state()
            numbers = torch.empty(1, self.size, device=self.device).exponential_(generator=self._generator)
            self._ahead.append((before, numbers))
        return self._ahead[depth][1]


def _is_warper(kind: type) -> bool:
    """Whether processors of this class look at the logits alone; those of others may count their calls."""
    return kind.__name__.endswith("Warper") and kind.__module__.startswith("transformers.")


def _state(device: torch.device) -> Tensor:
    """Of the generator that `generate` draws with."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
