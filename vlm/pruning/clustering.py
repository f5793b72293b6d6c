"""Clusters of tokens: centres by density peaks, and merging of the other tokens into them."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from mmaccel.kernels import segment_mean


def distances(features: torch.Tensor) -> torch.Tensor:
    """Euclidean distances over the root of the width, float32, `[M, D]` to `[M, M]`; equal tokens are exactly 0."""
    features = features.float()
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(features, features, compute_mode=exact) / features.shape[1] ** 0.5


def peak_scores(distance: torch.Tensor, neighbours: int) -> torch.Tensor:
    """How well each token would do as the centre of a cluster: density times distance from denser tokens.

    DPC-KNN (Du et al., "Study on density peaks clustering based on k-nearest neighbors and principal component
    analysis", 2016), as the token mergers use it.

    Parameters
    ----------
    distance : `[M, M]`
    neighbours
        The density is ``exp(-mean squared distance)`` over this many nearest tokens, itself included.

    Returns
    -------
    `[M]`. Of equally dense tokens the first counts as denser (reference codes draw noise instead).

    Examples
    --------
    >>> line = torch.tensor([[0.0], [0.1], [0.2], [2.0]])
    >>> peak_scores(distances(line), 2).topk(2).indices.sort().values
    tensor([0, 3])
    """
    neighbours = min(neighbours, len(distance))
    density = (-(distance.topk(neighbours, largest=False).values ** 2).mean(1)).exp()
    index = torch.arange(len(density), device=density.device)
    denser = (density > density[:, None]) | ((density == density[:, None]) & (index < index[:, None]))
    return density * torch.where(denser, distance, distance.max()).amin(1)


def means(features: torch.Tensor, owner: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and number of the tokens of each owner; 0 for an owner without tokens.

    Parameters
    ----------
    features : `[M, D]`
    owner : int64 `[M]`
        From 0 to ``count - 1``.

    Returns
    -------
    float32 `[count, D]` and int64 `[count]`. Summed in a fixed order, so that a GPU gives the same result again.

    Examples
    --------
    >>> means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), 3)
    (tensor([[2.],
            [0.],
            [5.]]), tensor([2, 0, 1]))
    """
    size = owner.bincount(minlength=count)
    return segment_mean(features.float(), None, owner.argsort(stable=True), pad(size.cumsum(0), (1, 0))), size


def others(index: torch.Tensor, length: int) -> torch.Tensor:
    """The indices below `length` that are not in `index`, in order."""
    rest = torch.ones(length, dtype=torch.bool, device=index.device)
    rest[index] = False
    return rest.nonzero().flatten()
