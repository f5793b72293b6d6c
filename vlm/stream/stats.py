"""What a stream has seen and done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class VideoStreamStats:
    """What a stream has seen and done.

    Attributes
    ----------
    frames
        Frames pushed.
    remembered
        Of how many frames there are tokens.
    tokens, plain_tokens
        Visual tokens in memory, and those of all frames.
    tower_share
        Tokens times layers that the vision tower computed, of all; 1 without reuse.
    seconds
        In which frames were taken in.
    memory_bytes
        Held between calls: tokens, and keys and values of the prompt.
    """

    frames: int = 0
    remembered: int = 0
    tokens: int = 0
    plain_tokens: int = 0
    tower_share: float = 1.0
    seconds: float = 0.0
    memory_bytes: int = 0
