"""A bounded memory of the visual tokens of a stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmaccel.stepping.tensors import count_bytes

POLICIES = ("peak_end", "budget", "window")
RECENT = 0.5  # share of the memory that the newest frames have for themselves


@dataclass
class FrameTokens:
    """What is left of one frame.

    Attributes
    ----------
    number
        Of the frame in the stream.
    tokens : `[K, D]`
    novelty
        How new the frame was when it came.
    """

    number: int
    tokens: torch.Tensor
    novelty: float


class TokenMemory:
    """The tokens of frames, at most so many in all.

    When it is full, the newer half stays as it is. Of the older frames one goes at a time: with ``"peak_end"`` the
    one that was least new (what people remember of the past are its peaks and its end), with ``"budget"`` the one
    that is nearest in time to its neighbours, so that the past grows evenly thinner. With ``"window"``, the simple
    alternative, all of it is for the newest frames: best for questions about just now, none about before are answered.

    Parameters
    ----------
    limit
        Most tokens.
    policy
        ``"peak_end"`` (default), ``"budget"`` or ``"window"``.

    Examples
    --------
    >>> memory = TokenMemory(limit=8)
    >>> for number in range(10):
    ...     memory.add(FrameTokens(number, torch.zeros(2, 4), novelty=float(number == 3)))
    >>> [frame.number for frame in memory.frames]
    [3, 7, 8, 9]
    """

    def __init__(self, limit: int, policy: str = "peak_end") -> None:
        self.limit, self.policy = limit, policy
        self.frames: list[FrameTokens] = []
        self.count = self.first = 0

    def add(self, frame: FrameTokens) -> None:
        if not self.frames:
            self.first = frame.number
        self.frames.append(frame)
        self.count += len(frame.tokens)
        while self.count > self.limit and len(self.frames) > 1:
            gone = self.frames.pop(self._weakest())
            self.count -= len(gone.tokens)

    def _weakest(self) -> int:
        """Which frame of the older ones goes."""
        if self.policy == "window":
            return 0
        older = len(self.frames) - 1  # the newest stays, however large it is
        held = len(self.frames[older].tokens)
        while older > 1 and held + len(self.frames[older - 1].tokens) <= RECENT * self.limit:
            older -= 1
            held += len(self.frames[older].tokens)
        if self.policy == "peak_end":
            return min(range(older), key=lambda i: self.frames[i].novelty)
        return min(range(older), key=self._room)

    def _room(self, i: int) -> int:
        """Time between the neighbours of a frame; the first frame has the stream's beginning before it."""
        before = self.frames[i - 1].number if i else self.first - 1
        after = self.frames[min(i + 1, len(self.frames) - 1)].number
        return after - before

    def tokens(self) -> torch.Tensor:
        """All tokens in the order of time, `[K, D]`."""
        return torch.cat([frame.tokens for frame in self.frames])

    def nbytes(self) -> int:
        return count_bytes([frame.tokens for frame in self.frames])
