"""Which frames of a video show something new, by their pixels alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mmaccel.errors import SettingError
from mmaccel.method import is_number

BLOCKS = 16  # across and down
STILL = 24.0  # levels of 255
SIDE = 128  # pixels of a frame that are looked at, across and down


@dataclass
class Changes:
    """Tells a frame in which nothing changed since the last one that was taken; lossy.

    A frame counts as new once any of 16 x 16 parts of the picture is another one on the mean over its pixels. So small
    things count as much as large ones, slow movement counts once it has gone some way, and noise does not.

    Parameters
    ----------
    still
        Levels of 255 by which a part must differ; 0 takes all frames.

    Raises
    ------
    SettingError
        If it is out of range.

    Examples
    --------
    >>> changes = Changes(still=8)
    >>> black, white = np.zeros((32, 32, 3), np.uint8), np.full((32, 32, 3), 255, np.uint8)
    >>> [changes.new(frame) for frame in (black, black, white, white)]
    [True, False, True, False]
    """

    still: float
    _last: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not is_number(self.still, 0, 255):
            raise SettingError(f"still={self.still!r}: pass levels from 0 (all frames) to 255, such as 12")

    def new(self, frame: np.ndarray) -> bool:
        """Whether to take this frame uint8 `[H, W, 3]`, which later ones are compared with then."""
        parts = _parts(frame)
        last = self._last
        if last is not None and last.shape == parts.shape and np.abs(parts - last).max() < self.still:
            return False
        self._last = parts
        return True


def _parts(frame: np.ndarray) -> np.ndarray:
    """The mean colour of each part, float32 `[rows, columns, 3]`."""
    height, width = frame.shape[:2]
    small: np.ndarray = frame[:: max(1, height // SIDE), :: max(1, width // SIDE)].astype(np.float32)
    for axis in (0, 1):
        length = small.shape[axis]
        starts = np.arange(min(BLOCKS, length)) * length // min(BLOCKS, length)
        sizes = np.diff(np.append(starts, length)).reshape([-1 if a == axis else 1 for a in range(3)])
        small = np.add.reduceat(small, starts, axis=axis) / sizes
    return small
