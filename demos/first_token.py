"""When the first token of an answer comes."""

from __future__ import annotations

import time

import torch


class FirstToken:
    """A streamer that notes when the first token of an answer comes."""

    def __init__(self) -> None:
        self.puts, self.began, self.seconds = 0, time.perf_counter(), 0.0

    def put(self, value: torch.Tensor) -> None:
        """Take tokens as `generate` makes them, the prompt first."""
        self.puts += 1
        if self.puts == 2:
            self.seconds = time.perf_counter() - self.began

    def end(self) -> None:
        """The answer is complete."""
