"""Small batched probability operations in float32, shared by every draft-and-verify rule.

All of them work on the last axis (the vocabulary, `V`) with any leading shape, on CPU or CUDA, and never
touch the global random state when a generator is given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# The smallest Exp(1) draw that a 24-bit uniform can give. Some back ends return an exact 0 in its place, and
# dividing by 0 would let a token of probability 1e-30 win the race.
_SMALLEST_EXPONENTIAL = 2.0**-24


def sample(probabilities: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one token per row by an exponential race, argmax(p / Exp(1)).

    Exact up to float32, needs no device synchronisation (`torch.multinomial` does), and never returns a token
    of probability 0.

    Parameters
    ----------
    probabilities
        `[..., V]`, non-negative; rows need not be normalised but must have some mass.
    generator
        Source of randomness on the same device; the global one by default.

    Returns
    -------
    `[...]` int64.

    Examples
    --------
    >>> sample(torch.tensor([[0.0, 1.0, 0.0]])).tolist()
    [1]
    """
    probabilities = probabilities.float()
    noise = torch.empty_like(probabilities, memory_format=torch.contiguous_format)
    noise = noise.exponential_(generator=generator).clamp_min_(_SMALLEST_EXPONENTIAL)
    # A negative score for impossible tokens, because p / noise may underflow to 0 for possible ones.
    score = torch.where(probabilities > 0, probabilities / noise, -1.0)
    return score.argmax(-1)


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    """Float32 one-hot distributions `[..., V]` of `tokens [...]`.

    Examples
    --------
    >>> one_hot(torch.tensor([1]), 3).tolist()
    [[0.0, 1.0, 0.0]]
    """
    shape = (*tokens.shape, vocabulary)
    zeros = torch.zeros(shape, dtype=torch.float32, device=tokens.device)
    return zeros.scatter(-1, tokens.unsqueeze(-1), 1.0)


def gumbel(
    shape: Sequence[int],
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw standard Gumbel noise, float32, as -log(Exp(1)).

    `argmax(log p + gumbel)` is a draw from p; fixed noise makes it a function of p (Gumbel coupling).

    Parameters
    ----------
    shape
        Shape of the result.
    generator
        Source of randomness; its device is the default device.
    device
        Device of the result.

    Examples
    --------
    >>> gumbel((2, 5), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 5])
    """
    if device is None and generator is not None:
        device = generator.device
    noise = torch.empty(tuple(shape), dtype=torch.float32, device=device)
    return -noise.exponential_(generator=generator).clamp_min_(_SMALLEST_EXPONENTIAL).log()
