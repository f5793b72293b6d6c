"""How many drafts of a chain are kept."""

from __future__ import annotations

import torch

from .checks import check_distributions, check_indices, has_values, require
from .library import define


def _fake(p: torch.Tensor, *_: object) -> torch.Tensor:
    return p.new_empty(p.shape[0], dtype=torch.int32)


_op = define("accept_length", "(Tensor p, Tensor q, Tensor tok, Tensor u) -> Tensor", _fake)


def accept_length(p: torch.Tensor, q: torch.Tensor, tok: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Number of leading drafts kept by the token-ratio test (Leviathan et al., 2023).

    Draft `k` passes if ``u < p / q`` for its token; the first failure ends the chain. Exact together with
    :func:`mmaccel.kernels.residual_sample`: the tokens are distributed as `p`.

    Parameters
    ----------
    p, q : float `[B, K, V]`
        Probabilities of the model and of the draft at each place; `p` may have `K + 1` places.
    tok : int32 or int64 `[B, K]`
        Drafts; each was drawn from its `q`.
    u : float32 `[B, K]`
        Uniform numbers in [0, 1).

    Returns
    -------
    int32 `[B]`, between 0 and `K`.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or (on the CPU, where values are read) a token is outside.

    Examples
    --------
    >>> p, q = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]]), torch.full((1, 2, 2), 0.5)
    >>> accept_length(p, q, torch.tensor([[0, 0]]), torch.tensor([[0.9, 0.1]])).tolist()
    [1]
    """
    check_distributions(p, q)
    check_indices("tok", tok, q.device, 2)
    require(tok.shape == q.shape[:2], "tok", f"{list(q.shape[:2])}", tok)
    require(u.shape == q.shape[:2] and u.is_floating_point(), "u", f"floating {list(q.shape[:2])}", u)
    require(u.device == q.device, "u", f"on {q.device}, as q is", u)
    if tok.numel() and has_values(tok):
        low, high = (int(x) for x in tok.aminmax())
        require(low >= 0 and high < q.shape[2], "tok", f"between 0 and {q.shape[2] - 1}", tok)
    return _op(p, q, tok, u)
