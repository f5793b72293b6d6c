"""Positions of the frames of videos and pictures in an unshortened prompt."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mmaccel.kernels.policies import Span

Grid = tuple[int, int, int]  # frames, rows, columns


def spans(ids: torch.Tensor, token_ids: dict[str, int], grids: dict[str, list[Grid]]) -> list[list[Span]] | None:
    """The spans of each row of a batch, or None where grids and placeholders do not fit together.

    Parameters
    ----------
    ids : `[B, L]`
        With placeholders.
    token_ids
        The placeholder of each kind.
    grids
        For each kind the grids of its visuals, in the order of the prompts.

    Examples
    --------
    >>> spans(torch.tensor([[1, 9, 9, 9, 9, 2, 9, 9, 3]]), {"video": 9}, {"video": [(3, 1, 2)]})
    [[Span(first=1, frames=2, rows=1, columns=2), Span(first=6, frames=1, rows=1, columns=2)]]
    """
    waiting = {kind: [list(grid) for grid in found] for kind, found in grids.items()}
    result = []
    for row in ids.tolist():
        found: list[Span] = []
        for kind, first, length in _runs(row, {token: kind for kind, token in token_ids.items()}):
            if not _fill(found, waiting.get(kind, []), first, length):
                return None
        result.append(found)
    return result if not any(waiting.values()) else None


def _runs(row: list[int], kinds: dict[int, str]) -> Iterator[tuple[str, int, int]]:
    """Kind, first slot and length of each run of one placeholder."""
    first = 0
    for slot in range(1, len(row) + 1):
        if slot == len(row) or row[slot] != row[first]:
            if row[first] in kinds:
                yield kinds[row[first]], first, slot - first
            first = slot


def _fill(found: list[Span], waiting: list[list[int]], first: int, length: int) -> bool:
    """Lay the next frames into one run; tokens after the last of a visual show nothing."""
    while length > 0:
        if not waiting:
            return False
        frames, rows, columns = waiting[0]
        count = min(frames, length // (rows * columns))
        if not count:
            return bool(found) and length < rows * columns
        found.append(Span(first, count, rows, columns))
        first, length = first + count * rows * columns, length - count * rows * columns
        waiting[0][0] -= count
        if not waiting[0][0]:
            waiting.pop(0)
            if not waiting or length < waiting[0][1] * waiting[0][2]:
                return True
    return True
