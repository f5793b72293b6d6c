"""Chain rules as pure functions: token ratio and block verification.

They compute acceptance probabilities and residual scales and draw nothing, so the law of a rule can be
enumerated exactly from its tensors. `mmaccel.decoding.accept` adds the randomness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .probability import at, bounded_quotient, ratio

Stop = Literal["first_failure", "last_success"]


@dataclass(frozen=True, eq=False)
class ChainJudgement:
    """What a chain rule decides before any randomness.

    Attributes
    ----------
    accept_probability
        `[B, K]`: success probability of the independent trial of each draft token.
    scale
        `[B, K + 1]`: after stopping with t accepted tokens the next one is drawn from
        norm[(scale[t] * P_t - Q_t)+], with Q_K = 0.
    stop
        `first_failure`: t is the number of successes before the first failure; `last_success`: t is the index
        of the last success, whatever failed before it.
    """

    accept_probability: Tensor
    scale: Tensor
    stop: Stop


def unscaled(p: Tensor) -> Tensor:
    """Ones `[B, N]`, the scale of the plain residual norm[(P - Q)+] for `p [B, N, V]`."""
    return torch.ones(p.shape[:2], dtype=torch.float32, device=p.device)


def token_ratio(p: Tensor, q: Tensor, tokens: Tensor) -> ChainJudgement:
    """Token-by-token speculative sampling (Leviathan et al., 2023; Chen et al., 2023), exact.

    Parameters
    ----------
    p
        `[B, K + 1, V]` target distributions, row i given the first i draft tokens.
    q
        `[B, K, V]` distributions the draft tokens were drawn from.
    tokens
        `[B, K]` the draft.

    Examples
    --------
    >>> p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    >>> token_ratio(p, torch.tensor([[[0.5, 0.5]]]), torch.tensor([[0]])).accept_probability.tolist()
    [[0.5]]
    """
    return ChainJudgement(ratio(p[:, :-1], q, tokens), unscaled(p), "first_failure")


def block(p: Tensor, q: Tensor, tokens: Tensor) -> ChainJudgement:
    """Block verification (Sun et al., 2024): exact, and never accepts less than `token_ratio` on average.

    With p_0 = 1, p_i = min(1, p_{i-1} P(x_i) / Q(x_i)) and Z_i = sum((p_i P - Q)+) at the node after x_i,
    trial i succeeds with h_i = Z_i / (Z_i + 1 - p_i), and h_K = p_K. *Every* trial is drawn and the last
    success counts.

    Whether this rule stops at t depends on *all* draft tokens, so those past t are no longer distributed as q
    afterwards. A loop that carries them over (Jacobi decoding with maximal or Gumbel coupling) must use
    `token_ratio`; fresh samples in their place are fine.

    Parameters
    ----------
    p
        `[B, K + 1, V]` target distributions, row i given the first i draft tokens.
    q
        `[B, K, V]` distributions the draft tokens were drawn from.
    tokens
        `[B, K]` the draft.

    Examples
    --------
    >>> p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    >>> block(p, torch.tensor([[[0.5, 0.5]]]), torch.tensor([[0]])).accept_probability.tolist()
    [[0.5]]
    """
    p, q = p.float(), q.float()
    count = tokens.shape[1]
    target, drafted = at(p[:, :-1], tokens), at(q, tokens)
    running = [torch.ones_like(p[:, 0, 0])]
    for i in range(count):
        running.append(bounded_quotient(running[-1] * target[:, i], drafted[:, i]))
    scale = torch.stack(running, 1)
    inner = scale[:, 1:-1]
    mass = (inner.unsqueeze(-1) * p[:, 1:-1] - q[:, 1:]).clamp_min(0.0).sum(-1)
    # 0/0 only where P = Q and p_i = 1: some later trial then succeeds for sure, so any value is right.
    slack = mass + 1.0 - inner
    trial = torch.where(slack > 0, mass / torch.where(slack > 0, slack, 1.0), 1.0)
    return ChainJudgement(torch.cat([trial, scale[:, 1:][:, -1:]], 1), scale, "last_success")
