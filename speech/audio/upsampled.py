"""16,000 samples a second as 24,000, for models of that rate; a stream of it can be copied, unlike a resampler's."""

from __future__ import annotations

from functools import cache

import torch

TAPS = 64  # of 16 kHz on which a sample depends: 4 ms
BETA = 9.0  # of the Kaiser window: 90 dB below


@cache
def _filters() -> torch.Tensor:
    """A windowed sinc `[3, 1, TAPS + 2]` for each of the three samples that two become."""
    places = torch.arange(TAPS + 2, dtype=torch.float64, device="cpu")
    centres = TAPS / 2 + places.new_tensor([0.0, 2 / 3, 4 / 3])
    away = places - centres[:, None]
    bell = torch.i0(BETA * (1 - (away / (TAPS / 2)).clamp(-1, 1) ** 2).sqrt())
    window = bell / torch.i0(torch.tensor(BETA, device="cpu"))
    return torch.where(away.abs() <= TAPS / 2, torch.sinc(away) * window, 0.0).float()[:, None]


class Upsampler:
    """Three samples for each two; the output does not depend on how the sound was cut, up to rounding.

    The last 2 ms are held back until more sound follows. Bounded memory; :func:`copy.copy` makes another stream.

    Examples
    --------
    >>> stream = Upsampler()
    >>> len(stream.push(torch.zeros(1600))) + len(stream.push(torch.zeros(1600)))
    4752
    """

    def __init__(self) -> None:
        self._held = torch.zeros(TAPS // 2, device="cpu")

    def push(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples `[m]` that new ones `[n]` complete."""
        known = torch.cat([self._held, samples.float().cpu()])
        count = max(0, (len(known) - TAPS) // 2)
        self._held = known[2 * count :].clone()
        if not count:
            return known[:0]
        made = torch.nn.functional.conv1d(known[None, None], _filters(), stride=2)[0, :, :count]
        return made.T.flatten()
