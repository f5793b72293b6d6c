"""How long a listener waits while speech is made block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Self

from mmaccel.errors import SettingError
from mmaccel.method import is_count


@dataclass(frozen=True)
class AudioBlock:
    """A block of audio as it was ready.

    Attributes
    ----------
    ready
        Seconds from the start.
    seconds
        Its length as sound.
    real_time_factor
        Seconds it took since the block before, over its length; above 1 the player runs out of sound in the end.
    gap
        Seconds of silence before it, for a player that plays each block as soon as it can; 0 for the first.
    """

    ready: float
    seconds: float
    real_time_factor: float
    gap: float


class FirstByteMeter:
    """Time to the first sound, cost of every block and gaps in playback.

    Parameters
    ----------
    sample_rate
        Samples per second of the audio.
    clock
        Gives seconds; default `time.perf_counter`, as a listener feels it. `time.process_time` counts work only.

    Raises
    ------
    SettingError
        If `sample_rate` is not an integer of at least 1.

    Examples
    --------
    >>> times = iter([0.0, 0.1, 0.15, 0.40])
    >>> meter = FirstByteMeter(sample_rate=24_000, clock=lambda: next(times))
    >>> for audio in ([0] * 1920, [0] * 3840, [0] * 1920):
    ...     block = meter.add(audio)
    >>> meter.first_byte, round(meter.gap_seconds, 3)
    (0.1, 0.06)
    """

    def __init__(self, sample_rate: int, clock: Callable[[], float] = time.perf_counter) -> None:
        if not is_count(sample_rate):
            raise SettingError(f"FirstByteMeter(sample_rate={sample_rate!r}): it must be an integer of at least 1")
        self.sample_rate, self._clock = sample_rate, clock
        self.blocks: list[AudioBlock] = []
        self.restart()

    def __enter__(self) -> Self:
        self.restart()
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def restart(self) -> None:
        """Forget all blocks, and start counting now."""
        self.blocks.clear()
        self._began, self._plays_until = self._clock(), 0.0

    def add(self, audio: Sized) -> AudioBlock | None:
        """Note that a block is ready now; `audio` is a tensor `[..., samples]` or a sequence, None if it is empty."""
        samples = audio.shape[-1] if hasattr(audio, "shape") else len(audio)
        if not samples:
            return None
        ready, seconds = self._clock() - self._began, samples / self.sample_rate
        took = ready - self.blocks[-1].ready if self.blocks else ready
        gap = max(0.0, ready - self._plays_until) if self.blocks else 0.0
        self._plays_until = max(self._plays_until, ready) + seconds
        self.blocks.append(AudioBlock(ready, seconds, took / seconds, gap))
        return self.blocks[-1]

    @property
    def first_byte(self) -> float | None:
        """Seconds from the start to the first sound; None before it."""
        return self.blocks[0].ready if self.blocks else None

    @property
    def gap_seconds(self) -> float:
        """Silence within the speech, in all."""
        return sum(block.gap for block in self.blocks)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds it took to make all blocks, over their length; None before the first."""
        return self.blocks[-1].ready / sum(block.seconds for block in self.blocks) if self.blocks else None

    def __str__(self) -> str:
        if self.first_byte is None:
            return "no sound yet"
        return (
            f"first sound after {self.first_byte:.3f} s, real-time factor {self.real_time_factor:.2f} over"
            f" {len(self.blocks)} blocks, {self.gap_seconds:.3f} s of gaps"
        )
