"""Class tokens of earlier pictures, a few for each class: those of which a model was surest, unless too alike."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from mmaccel.machine import unrounded
from mmaccel.stepping.tensors import count_bytes


class Reservoir:
    """What TCA remembers of the pictures that one session has seen.

    Parameters
    ----------
    size
        Pictures to hold for each class.

    Attributes
    ----------
    texts : `[C, P]` or None
        The classes, as unit vectors; None before any were given.
    counts : list of int
        Pictures held for each class.
    tokens : `[C, size + 1, L, D]`
        Their class tokens after each layer; the last place is for one that comes.
    uncertainty : float32 `[C, size + 1]`
        The entropy of their predictions, in nats.
    means : `[C, L, D]`
        The anchor of each class: the mean of its tokens.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.texts: torch.Tensor | None = None
        self.counts: list[int] = []

    def __len__(self) -> int:
        return sum(self.counts)

    def begin(self, texts: torch.Tensor) -> None:
        """Name the classes `[C, P]`; where they are others than before, what was held is forgotten."""
        known = self.texts
        if known is None or known.shape != texts.shape or not torch.allclose(known, texts.to(known), atol=1e-4):
            self.texts, self.counts = texts.detach().clone(), [0] * len(texts)

    @torch.no_grad()
    def add(self, tokens: torch.Tensor, logits: torch.Tensor) -> None:
        """Add pictures to the classes that were predicted for them: class tokens `[B, L, D]` and logits `[B, C]`."""
        chances = logits.float().softmax(-1)
        entropy = torch.special.entr(chances).sum(-1)
        if not len(self):
            with torch.inference_mode(False):  # else a later run outside that mode could not write to them
                self.tokens = tokens.new_zeros(len(self.counts), self.size + 1, *tokens.shape[1:])
                self.means = tokens.new_zeros(len(self.counts), *tokens.shape[1:])
                self.uncertainty = entropy.new_zeros(len(self.counts), self.size + 1)
        elif self.tokens.device != tokens.device:  # the model was moved
            with torch.inference_mode(False):
                held = self.tokens, self.means, self.uncertainty
                self.tokens, self.means, self.uncertainty = (values.to(tokens.device) for values in held)
        for row, label in enumerate(chances.argmax(-1).tolist()):
            self._put(label, tokens[row], entropy[row])

    def _put(self, label: int, tokens: torch.Tensor, entropy: torch.Tensor) -> None:
        held, uncertainty, count = self.tokens[label], self.uncertainty[label], self.counts[label]
        held[count], uncertainty[count] = tokens, entropy
        if count < self.size:
            self.counts[label] += 1
        else:  # the least sure and most alike goes, which may be the new one
            unit = normalize(held.float().mean(1), dim=-1)
            with unrounded(unit.device.type):
                alike = ((unit @ unit.T).sum(1) - 1) / self.size
            gone = (uncertainty + alike).argmax()
            held[gone], uncertainty[gone] = held[self.size].clone(), uncertainty[self.size].clone()
        self.means[label] = held[: self.counts[label]].mean(0)

    def anchors(self, layer: int) -> torch.Tensor | None:
        """The anchors after a layer `[K, D]`, one for each class that has a picture; None where none has."""
        labels = [label for label, count in enumerate(self.counts) if count]
        return self.means[labels, layer] if labels else None

    @torch.no_grad()
    def votes(self, tokens: torch.Tensor, shares: torch.Tensor, sharpness: float) -> torch.Tensor:
        """How much the pictures held speak for each class.

        Parameters
        ----------
        tokens : `[B, L, D]`
            Class tokens of the pictures asked about.
        shares : `[L]`
            Weights of the layers, whose sum is 1.
        sharpness
            How fast the vote of a picture falls as it gets less alike.

        Returns
        -------
        float32 `[B, C]`, a sum over pictures, each at most 1.
        """
        held, asked = self.tokens[:, : self.size].float(), normalize(tokens.float(), dim=-1)
        lengths = held.norm(dim=-1).clamp(min=1e-12)  # [C, size, L]
        with unrounded(held.device.type):
            cosines = torch.einsum("csld,bld->bcsl", held, asked) / lengths
        alike = (cosines * shares.to(cosines)).sum(-1)
        counts = torch.tensor(self.counts, device=held.device)
        there = torch.arange(self.size, device=held.device) < counts[:, None]
        return ((sharpness * (alike - 1)).exp() * there).sum(-1)

    def nbytes(self) -> int:
        """Bytes that it takes."""
        return count_bytes([self.tokens, self.means, self.uncertainty]) if len(self) else 0
