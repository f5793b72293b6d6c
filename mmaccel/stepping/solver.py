"""Which steps of a run to compute, solved from the velocities of plain runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmaccel.errors import SettingError

Array = np.ndarray[Any, np.dtype[np.float64]]


def best_steps(products: Array, levels: Sequence[float], count: int) -> tuple[int, ...]:
    """The `count` steps between which interpolated velocities are off by least, by dynamic programming.

    A step that is not computed ends up, once corrected, as if it had moved by a velocity on the line between those of
    the computed steps around it. Within a gap these errors add up as vectors, and over the gaps their sizes are
    added. What forecasts do to the sample until they are corrected is left out.

    Parameters
    ----------
    products
        Inner products `[N, N]` of the guided velocities of all steps of a plain run, or their mean over runs.
    levels
        Noise levels, of `N + 1` entries.
    count
        Steps to compute, at least 2: the first and the last always are.

    Returns
    -------
    Indices, rising.

    Raises
    ------
    SettingError
        If `count` is below 2.

    Examples
    --------
    >>> velocities = np.array([[0.0, 1.0, 2.0, 4.0, 8.0, 16.0]]).T  # hardly bent at the beginning
    >>> best_steps(velocities @ velocities.T, np.linspace(1, 0, 7), 4)
    (0, 3, 4, 5)
    """
    steps = len(products)
    if count < 2:
        raise SettingError(f"count={count}: at least 2 steps are computed")
    if count >= steps:
        return tuple(range(steps))
    gaps = _gap_errors(products, levels)
    least = np.full(steps, np.inf)  # error up to computed step j
    least[0] = 0.0
    came: list[Array] = []
    for _ in range(count - 1):
        reached = least[:, None] + gaps  # [i, j]
        came.append(reached.argmin(0).astype(float))
        least = reached.min(0)
    computed = [steps - 1]
    for table in reversed(came):
        computed.append(int(table[computed[-1]]))
    return tuple(reversed(computed))


def _gap_errors(products: Array, levels: Sequence[float]) -> Array:
    """Error `[i, j]` of the steps between computed steps `i` and `j`."""
    steps = len(products)
    moves = np.diff(np.asarray(levels, dtype=float))
    errors = np.full((steps, steps), np.inf)
    for i in range(steps):
        for j in range(i + 1, steps):
            weights = np.zeros(steps)  # of the velocities in the sum of errors
            reach = levels[j] - levels[i]
            for k in range(i + 1, j):
                share = (levels[k] - levels[i]) / reach if reach else 0.0  # rounded levels may be equal
                weights[[k, i, j]] += moves[k] * np.array([1, share - 1, -share])
            errors[i, j] = max(0.0, float(weights @ products @ weights)) ** 0.5
    return errors
