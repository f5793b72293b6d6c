"""Joining attention over parts of the keys."""

from __future__ import annotations

import torch

from .checks import require
from .library import define


def _fake(output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return output.new_empty(output.shape[1:]), lse.new_empty(lse.shape[1:])


_op = define("merge_states", "(Tensor output, Tensor lse) -> (Tensor, Tensor)", _fake)


def merge_states(output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over `S` disjoint sets of keys into attention over their union (FlashInfer, 2024).

    Exact: each part is weighted with its share of the softmax.

    Parameters
    ----------
    output : `[S, ..., D]`
        Outputs over each part.
    lse : float32 `[S, ...]`
        Natural log-sum-exp of each part, -inf where it had no key; its output is then not read.

    Returns
    -------
    output : `[..., D]` in the dtype that came in, lse : float32 `[...]`.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> output, lse = merge_states(torch.tensor([[1.0], [3.0]])[:, None], torch.zeros(2, 1))
    >>> output.item(), round(lse.item(), 4)
    (2.0, 0.6931)
    """
    require(output.ndim >= 2 and output.shape[0] >= 1, "output", "[S, ..., D]", output)
    fits = lse.dtype == torch.float32 and lse.shape == output.shape[:-1]
    require(fits, "lse", f"float32 {list(output.shape[:-1])}", lse)
    require(lse.device == output.device, "lse", f"on {output.device}, as output is", lse)
    result: tuple[torch.Tensor, torch.Tensor] = _op(output, lse)
    return result
