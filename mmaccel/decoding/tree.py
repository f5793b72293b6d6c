"""Tree rules as pure functions: one-hot children, and siblings drawn without replacement.

They compute acceptance probabilities and residual distributions and draw nothing, so the law of a rule can be
enumerated exactly from its tensors. `mmaccel.decoding.accept` adds the randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .probability import bounded_quotient, normalize, ratio, residual


@dataclass(frozen=True, eq=False)
class TreeJudgement:
    """What a tree rule decides before any randomness.

    Attributes
    ----------
    accept_probability
        `[B, K]`: probability of accepting each node, given that its parent was accepted and its earlier
        siblings were rejected.
    residual
        `[B, N, V]`: distribution of the next token at the root (row 0) and after node i (row 1 + i) once all
        of its children were rejected. N is 1 where only the root was evaluated.
    """

    accept_probability: Tensor
    residual: Tensor


def one_hot_tree(p: Tensor, tokens: Tensor, parent: Sequence[int]) -> TreeJudgement:
    """Judge a tree of deterministic guesses (SpecInfer, Miao et al., 2024, with one-hot drafts), exact.

    Each child is accepted with the probability that its token still has at its parent; a rejected token is
    zeroed and the rest renormalised.

    Parameters
    ----------
    p
        `[B, K + 1, V]` target distributions at the root and after each node; `[B, 1, V]` will do where all
        nodes are children of the root.
    tokens
        `[B, K]` the guesses.
    parent
        K node indices, -1 for the root, each before its children.

    Examples
    --------
    >>> p = torch.tensor([[[0.5, 0.3, 0.2]]])
    >>> one_hot_tree(p, torch.tensor([[0, 1]]), (-1, -1)).residual.tolist()
    [[[0.0, 0.0, 1.0]]]
    """
    left = p.float().clone()
    accept = []
    for i, node in enumerate(parent):
        row, token = left[:, node + 1], tokens[:, i : i + 1]
        accept.append(bounded_quotient(row.gather(-1, token).squeeze(-1), row.sum(-1)))
        row.scatter_(-1, token, 0.0)
    # A row emptied by its children is reached with probability 0 up to rounding; p keeps it a distribution.
    rest = torch.where(left.sum(-1, keepdim=True) > 0, left, p.float())
    return TreeJudgement(_stack(accept, p), normalize(rest))


def without_replacement(p: Tensor, q: Tensor, tokens: Tensor) -> TreeJudgement:
    """Recursive rejection of siblings drawn without replacement (RSD, Jeon et al., 2024), exact.

    A child is accepted with min(1, P/Q); on rejection P <- norm[(P - Q)+] and Q <- Q without that token,
    renormalised.

    Parameters
    ----------
    p
        `[B, N, V]` target distributions; row 0 is the root, whose children are judged.
    q
        `[B, V]` the one distribution that all children were drawn from.
    tokens
        `[B, K]` the children in the order in which they were drawn.

    Examples
    --------
    >>> p, q = torch.tensor([[[0.5, 0.5]]]), torch.tensor([[0.25, 0.75]])
    >>> without_replacement(p, q, torch.tensor([[1, 0]])).residual.tolist()
    [[[1.0, 0.0]]]
    """
    root, left = p[:, 0].float(), normalize(q)
    accept = []
    for i in range(tokens.shape[1]):
        accept.append(ratio(root, left, tokens[:, i]))
        root = residual(root, left)
        left = normalize(left.scatter(-1, tokens[:, i : i + 1], 0.0))
    return TreeJudgement(_stack(accept, p), torch.cat([root.unsqueeze(1), p[:, 1:].float()], 1))


def _stack(accept: list[Tensor], p: Tensor) -> Tensor:
    return torch.stack(accept, 1) if accept else torch.ones((p.shape[0], 0), device=p.device)
