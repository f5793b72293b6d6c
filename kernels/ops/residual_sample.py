"""The token after the drafts that were kept."""

from __future__ import annotations

import torch

from .checks import check_distributions, check_indices, has_values, require
from .library import define


def _fake(p: torch.Tensor, *_: object) -> torch.Tensor:
    return p.new_empty(p.shape[0], dtype=torch.int64)


_op = define("residual_sample", "(Tensor p, Tensor q, Tensor n, int seed) -> Tensor", _fake)


def residual_sample(p: torch.Tensor, q: torch.Tensor, n: torch.Tensor, seed: int) -> torch.Tensor:
    """Draw the token after `n` kept drafts (Leviathan et al., 2023).

    At a rejected place it is drawn from the positive part of ``p - q``, after the last draft from `p` itself;
    a residual that is 0 everywhere falls back to `p`. Drawn by the Gumbel-max trick, so that nothing has to be
    normalised. Exact together with :func:`mmaccel.kernels.accept_length`.

    Parameters
    ----------
    p : float `[B, K + 1, V]`
        Probabilities of the model at each place, the one after the last draft included; `K` places where no row
        keeps all drafts.
    q : float `[B, K, V]`
        Probabilities that the drafts were drawn from.
    n : int32 or int64 `[B]`
        Drafts kept, as from `accept_length`.
    seed
        Of this draw, 0 to 2**63 - 1: the same seed gives the same tokens on one backend. Rows of the batch
        draw independently.

    Returns
    -------
    int64 `[B]`.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or (on the CPU, where values are read) `n` is outside.

    Examples
    --------
    >>> p, q = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]]), torch.tensor([[[1.0, 0.0]]])
    >>> residual_sample(p, q, torch.tensor([0]), seed=0).tolist()
    [1]
    """
    check_distributions(p, q)
    check_indices("n", n, q.device, 1)
    require(n.shape[0] == q.shape[0], "n", f"[{q.shape[0]}]", n)
    require(0 <= seed < 2**63, "seed", "between 0 and 2**63 - 1", seed)
    if n.numel() and has_values(n):
        low, high = (int(x) for x in n.aminmax())
        require(low >= 0 and high < p.shape[1], "n", f"between 0 and {p.shape[1] - 1}", n)
    return _op(p, q, n, seed)
