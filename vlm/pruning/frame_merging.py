"""Frames that merge inside a vision tower, so that its later layers have fewer of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mmaccel.patching import hook

from .compressor import Compressor


class Merging:
    """Which frames of each video of one pass are still there.

    Attributes
    ----------
    present : list of int64 `[F']`
        One for each video.
    """

    def __init__(self, method: Compressor, videos: int, frames: int, device: torch.device) -> None:
        self.method = method
        self.present = [torch.arange(frames, device=device) for _ in range(videos)]

    def after(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """After a layer of the tower: hidden states `[frames of all videos, N, E]` with fewer frames."""
        hidden = output[0] if isinstance(output, tuple) else output
        parts = []
        for video, frames in enumerate(hidden.split([len(p) for p in self.present])):
            merged, first = self.method.merge(frames)
            self.present[video] = self.present[video][first]
            parts.append(merged)
        left = torch.cat(parts)
        return (left, *output[1:]) if isinstance(output, tuple) else left


@contextmanager
def merging(
    method: Compressor, layers: Sequence[torch.nn.Module], videos: int, frames: int, device: torch.device
) -> Iterator[Merging]:
    """Merge frames after the layers that the method names, inside this block."""
    state = Merging(method, videos, frames, device)
    with ExitStack() as stack:
        for number in method.merges_after(len(layers)):
            hook(stack, layers[number - 1], after=state.after)
        yield state
