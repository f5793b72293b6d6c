"""Attention of a few new queries over a cache: decoding, and verifying drafts."""

from __future__ import annotations

import torch

from .checks import check_attention, check_indices, has_values, require
from .library import define, fake_attention

_op = define(
    "verify_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? token_idx, Tensor? window_mask, float scale)"
    " -> (Tensor, Tensor)",
    fake_attention,
)


def verify_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    token_idx: torch.Tensor | None = None,
    window_mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the newest queries over a cache, or over selected tokens of it (Flash-Decoding, 2023).

    The query heads of a key head are packed into one matrix, so that the cache is read once for all of them.
    Exact over the tokens that are visible.

    Parameters
    ----------
    q : `[B, Hq, M, D]`
        The last `M` tokens of each row (1 in decoding, up to about 32 in verifying).
    k, v : `[B, Hkv, N, D]`
        The cache, the new tokens' states included; slots from `lengths` on are never read.
    lengths : int32 `[B]`
        Tokens in use in each row, the `M` new ones included; at least `M`.
    token_idx : int32 `[B, Hkv, S]`
        The only tokens to attend to, ascending and without repeats, -1 at the end for unused places. They
        include new tokens where those are to be seen.
    window_mask : bool `[M, M]` or `[B, M, M]`
        Which of the last `M` tokens each query sees, row by row: a tree of drafts. By default causal.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    output : `[B, Hq, M, D]` in the dtype of `q`; 0 where a query sees no token.
    lse : float32 `[B, Hq, M]`, natural logarithm; -inf where a query sees no token.

    Raises
    ------
    ValueError
        For wrong shapes, dtypes or devices, lengths outside `[M, N]`, or unsorted, repeated or unreachable
        indices (values are read on the CPU only: elsewhere that would stall the stream).

    Examples
    --------
    >>> q, cache = torch.randn(1, 8, 1, 64), torch.randn(1, 2, 512, 64)
    >>> output, lse = verify_attention(q, cache, cache, torch.tensor([300], dtype=torch.int32))
    >>> output.shape
    torch.Size([1, 8, 1, 64])
    """
    check_attention(q, k, v)
    batch, _, count, width = q.shape
    check_indices("lengths", lengths, q.device, 1)
    require(lengths.shape[0] == batch, "lengths", f"[{batch}]", lengths)
    require(count <= k.shape[2], "q", f"of at most {k.shape[2]} tokens, the slots of k", q)
    if token_idx is not None:
        check_indices("token_idx", token_idx, q.device, 3)
        wanted = (batch, k.shape[1])
        require(tuple(token_idx.shape[:2]) == wanted, "token_idx", f"[{batch}, {k.shape[1]}, S]", token_idx)
    if window_mask is not None:
        shapes = ((count, count), (batch, count, count))
        fits = window_mask.dtype == torch.bool and tuple(window_mask.shape) in shapes
        require(fits, "window_mask", f"bool [{count}, {count}] or [{batch}, {count}, {count}]", window_mask)
        require(window_mask.device == q.device, "window_mask", f"on {q.device}, as q is", window_mask)
    if has_values(lengths):
        _check_values(lengths, token_idx, count, k.shape[2])
    scale = width**-0.5 if scale is None else float(scale)
    return _op(q, k, v, lengths, token_idx, window_mask, scale)


def _check_values(lengths: torch.Tensor, token_idx: torch.Tensor | None, count: int, slots: int) -> None:
    """On numpy's view of the tensors: a torch op costs more than all that it would do here."""
    used = lengths.numpy()
    require(
        bool(count <= used.min() and used.max() <= slots), "lengths", f"between {count} and {slots}", lengths.tolist()
    )
    if token_idx is None or token_idx.shape[2] == 0:
        return
    chosen = token_idx.numpy()
    ahead, behind = chosen[..., 1:], chosen[..., :-1]
    rising = (ahead > behind).all()  # the usual case: then the ends tell of all between
    low, high = (chosen[..., 0], chosen[..., -1]) if rising else (chosen.min(2), chosen.max(2))
    within = (high < used[:, None]).all() and low.min() >= -1
    require(bool(within), "token_idx", "between 0 and lengths - 1, or -1 for unused places", token_idx)
    if not rising or low.min() < 0:
        rising = (((ahead > behind) & (behind >= 0)) | (ahead == -1)).all()
        require(bool(rising), "token_idx", "ascending without repeats, unused places (-1) last", token_idx)
