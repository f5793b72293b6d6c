"""Grouped acceptance: judge a draft token together with its neighbours in the target's ranking (lossy)."""

from __future__ import annotations

import torch
from torch import Tensor


def _window(p: Tensor, tokens: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Return the ids around each token in descending order of p, and which of them lie inside the ranking.

    `p [..., V]`, `tokens [...]` -> ids and mask `[..., 2 * half + 1]`, the token itself in the middle.
    """
    order = p.argsort(dim=-1, descending=True, stable=True)
    rank = (order == tokens.unsqueeze(-1)).to(torch.uint8).argmax(-1, keepdim=True)
    places = rank + torch.arange(-half, half + 1, device=p.device)
    inside = (places >= 0) & (places < p.shape[-1])
    return order.gather(-1, places.clamp(0, p.shape[-1] - 1)), inside


def grouped_ratio(
    p: Tensor,
    q: Tensor,
    tokens: Tensor,
    *,
    group_size: int,
    delta: float,
    distance: float,
    embeddings: Tensor | None = None,
) -> Tensor:
    """Acceptance probability min(1, p(C) / q(C)) over a cluster C of the draft token (GSD, So et al., 2025).

    The vocabulary is ranked by p. C holds the draft token x, and those of its `group_size // 2` neighbours in
    rank on each side (fewer at the ends of the ranking) with |p(v) - p(x)| < delta and a squared embedding
    distance below `distance`. An accepted draft keeps x itself. Lossy, except that `group_size=1` is exactly
    `ratio`.

    Parameters
    ----------
    p, q
        `[..., V]` target and draft distributions.
    tokens
        `[...]` the drafted tokens x.
    group_size, delta, distance
        As for :class:`mmaccel.image.GroupedSpeculative`.
    embeddings
        `[V, D]` token (codebook) embeddings; None skips the distance test.

    Returns
    -------
    `[...]` float32 in [0, 1].

    Examples
    --------
    >>> p, q = torch.tensor([0.4, 0.35, 0.25]), torch.tensor([0.1, 0.7, 0.2])
    >>> grouped_ratio(p, q, torch.tensor(1), group_size=3, delta=0.15, distance=0.5).item()
    1.0
    """
    p, q = p.float(), q.float()
    half = min(group_size // 2, p.shape[-1] - 1)
    ids, keep = _window(p, tokens, half)
    near_p = p.gather(-1, ids)
    keep = keep & ((near_p - near_p[..., half, None]).abs() < delta)
    if embeddings is not None:
        gap = embeddings[ids].float() - embeddings[tokens].float().unsqueeze(-2)
        keep = keep & (gap.square().sum(-1) < distance)
    keep[..., half] = True  # the draft token belongs to its own cluster even when delta is 0
    kept = keep.float()
    mass_p, mass_q = (near_p * kept).sum(-1), (q.gather(-1, ids) * kept).sum(-1)
    return torch.where(mass_q > 0, mass_p / mass_q, 0.0).clamp(max=1.0)
