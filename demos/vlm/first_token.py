"""When the first token of an answer comes."""

from __future__ import annotations

import time

import torch


class FirstToken:
    """A streamer that notes when the first token of an answer comes.

    Attributes
    ----------
    seconds, processor
        From its making to the first token, on the clock, and of the processor in this process.
    """

    def __init__(self) -> None:
        self.puts, self.seconds, self.processor = 0, 0.0, 0.0
        self.began, self.before = time.perf_counter(), time.process_time()

    def put(self, value: torch.Tensor) -> None:
        """Take tokens as `generate` makes them, the prompt first."""
        self.puts += 1
        if self.puts == 2:
            self.seconds, self.processor = time.perf_counter() - self.began, time.process_time() - self.before

    def end(self) -> None:
        """The answer is complete."""
