"""Rows of a padded batch: where each begins, runs of rows that begin alike, and pairs of query and key."""

from __future__ import annotations

from itertools import groupby

import torch

AT_ONCE = 1 << 24  # entries of a mask to look at together: that of a long prompt takes gigabytes by itself


def left_padding(mask: torch.Tensor | None, batch: int, queries: int, keys: int) -> list[int] | None:
    """The first key of each row that is not padding, if the mask is causal with padding on the left.

    Parameters
    ----------
    mask : bool `[B, 1, M, N]`
        True where a query sees a key; None if transformers leaves masking to the kernel.

    Returns
    -------
    One number per row, `N` for a row of nothing but padding; None for any other mask.
    """
    if mask is None:
        # the kernel's own mask is aligned at the top left: causal only for one query or a whole sequence
        return [0] * batch if queries in (1, keys) else None
    if mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[1:] != (1, queries, keys):
        return None
    start = keys - mask[:, 0, -1].sum(-1)
    key = torch.arange(keys, device=mask.device)
    alike = torch.ones((), dtype=torch.bool, device=mask.device)
    step = max(1, AT_ONCE // (len(mask) * keys))
    for first in range(0, queries, step):
        some = mask[:, 0, first : first + step]
        query = torch.arange(some.shape[1], device=mask.device) + keys - queries + first
        expected = (key <= query[:, None]) & (key >= start[:, None, None])
        alike &= (some == expected).all()
    if not bool(alike):
        return None
    starts = start.tolist()
    return starts * batch if len(starts) == 1 else starts


def runs(values: list[int] | list[tuple[int, int]]) -> list[tuple[int, int]]:
    """First and last row (exclusive) of each run of equal values: slices of a batch copy nothing."""
    found = []
    for _, rows in groupby(range(len(values)), key=lambda row: values[row]):
        numbers = list(rows)
        found.append((numbers[0], numbers[-1] + 1))
    return found


def causal_pairs(queries: int, keys: int, window: int | None = None) -> int:
    """Pairs of a query and a key that it sees, the queries being the last of `keys` tokens; it may see a window only.

    Examples
    --------
    >>> causal_pairs(2, 4), causal_pairs(2, 4, window=3)
    (7, 6)
    """
    queries = min(queries, keys)
    hidden = 0 if window is None else causal_pairs(queries, max(0, keys - window))
    return queries * keys - queries * (queries - 1) // 2 - hidden


def visible_in_blocks(queries: int, keys: int, block_m: int, block_n: int, device: torch.device | str) -> torch.Tensor:
    """Pairs that are visible under the causal mask in each block, int64 `[rows, columns]`."""
    first = torch.arange(0, keys, block_n, device=device)
    size = (keys - first).clamp(max=block_n)
    begin = torch.arange(keys - queries, keys, block_m, device=device)[:, None]
    end = (begin + block_m).clamp(max=keys)
    return _seen_up_to(end - first, size) - _seen_up_to(begin - first, size)


def _seen_up_to(queries: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Pairs in a block of so many keys, of which the first of so many queries sees one, the next two, up to all."""
    queries = queries.clamp(min=0)
    rising = torch.minimum(queries, size)
    return rising * (rising + 1) // 2 + (queries - rising) * size
