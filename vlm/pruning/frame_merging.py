"""Frames that merge inside a vision tower, so that its later layers have fewer of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mmaccel.patching import wrap_forward

from ..input.visual import Visual
from .compressor import Compressor


class Merging:
    """Which frames of each clip of one pass are still there.

    Only the layers see fewer frames. Around them each frame has the hidden states of the one that stands for it, so
    that whatever a tower does between and after its layers finds the shapes that it expects.

    Parameters
    ----------
    clips
        Frames of each clip, and rows of hidden states that a frame has: 1 in a tower that takes
        `[frames of all clips, patches, E]`, its patches where all come in one row, `[patches of all clips, E]`.

    Attributes
    ----------
    left : list of int64 `[F']`
        The frames still there, of each clip.
    owner : list of int64 `[F]`
        Which of these stands for each frame.
    """

    def __init__(self, method: Compressor, clips: Sequence[tuple[int, int]]) -> None:
        self.method, self.clips = method, clips
        self.left = [torch.arange(frames) for frames, _ in clips]
        self.owner = [frames.clone() for frames in self.left]
        self.total = sum(frames * rows for frames, rows in clips)

    def forward(self, merges: bool, original: Any, *args: Any, **kwargs: Any) -> Any:
        """A layer's `forward` on the frames that are left, of which some merge after it."""
        given = args[0] if args else kwargs["hidden_states"]
        axis = next((axis for axis, size in enumerate(given.shape[:2]) if size == self.total), None)
        if axis is None:  # its patches are not those of the frames, one after the other
            return original(*args, **kwargs)
        for frames in (self.left, self.owner):  # pixels may have come from another device
            frames[:] = [part.to(given.device) for part in frames]
        args, kwargs = self._fewer(args), self._fewer(kwargs)
        output = original(*args, **kwargs)
        hidden = output[0] if isinstance(output, tuple) else output
        full = self._all(self._merged(hidden, axis) if merges else hidden, axis)
        return (full, *output[1:]) if isinstance(output, tuple) else full

    def _merged(self, hidden: torch.Tensor, axis: int) -> torch.Tensor:
        rows = hidden.movedim(axis, 0)
        shape, parts = rows.shape[1:], []
        sizes = [len(left) * size for left, (_, size) in zip(self.left, self.clips, strict=True)]
        for clip, part in enumerate(rows.split(sizes)):
            frames = part.reshape(len(self.left[clip]), -1, shape[-1])
            merged, first = self.method.merge(frames)
            self.left[clip] = self.left[clip][first]
            self.owner[clip] = torch.searchsorted(first, self.owner[clip], right=True) - 1
            parts.append(merged.reshape(-1, *shape))
        return torch.cat(parts).movedim(0, axis)

    def _all(self, hidden: torch.Tensor, axis: int) -> torch.Tensor:
        """Hidden states of all frames, from those of the frames that are left."""
        if hidden.shape[axis] == self.total:
            return hidden
        return hidden.index_select(axis, self._rows(self.owner, [len(left) for left in self.left]))

    def _rows(self, frames: list[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
        """The rows of some frames of each clip, of which there are so many."""
        found, start = [], 0
        for chosen, count, (_, size) in zip(frames, counts, self.clips, strict=True):
            found.append((start + chosen[:, None] * size + torch.arange(size, device=chosen.device)).flatten())
            start += count * size
        return torch.cat(found)

    def _fewer(self, value: Any) -> Any:
        """Arguments of a layer, less what belongs to frames that are gone."""
        if isinstance(value, dict):
            return {name: self._fewer(part) for name, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._fewer(part) for part in value)
        if not isinstance(value, torch.Tensor) or sum(map(len, self.left)) == sum(map(len, self.owner)):
            return value
        rows = self._rows(self.left, [frames for frames, _ in self.clips])
        if value.dim() == 1 and value.dtype in (torch.int32, torch.int64) and int(value[-1]) == self.total:
            return self._bounds(value, rows)
        for axis in self._axes(value):
            value = value.index_select(axis, rows)
        return value

    def _bounds(self, bounds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Where pieces of the row of patches begin and end, `[pieces + 1]`, once it is shorter."""
        before = torch.zeros(self.total + 1, dtype=bounds.dtype, device=bounds.device)
        before[rows + 1] = 1
        return before.cumsum(0, dtype=bounds.dtype)[bounds.long()].unique_consecutive()

    def _axes(self, value: torch.Tensor) -> list[int]:
        """The axes of an argument along which it has an entry for each row."""
        axes = [axis for axis, size in enumerate(value.shape) if size == self.total]
        is_mask = value.dim() > 2 and axes[-2:] == [value.dim() - 2, value.dim() - 1]
        return axes[-2:] if is_mask else axes[:1]

    def restore(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """What a layer told of the frames that it had, frame after frame or piece after piece, for all frames."""
        if not parts or sum(map(len, self.left)) == sum(map(len, self.owner)):
            return parts
        sizes = [size for left, (_, size) in zip(self.left, self.clips, strict=True) for _ in left]
        if len(parts) != len(sizes):
            parts = list(torch.cat(parts).split(sizes))
        starts = torch.tensor([0, *map(len, self.left)]).cumsum(0).tolist()
        return [parts[start + i] for start, owner in zip(starts, self.owner, strict=False) for i in owner.tolist()]

    def mark(self, visuals: list[Visual]) -> None:
        """Say of each visual which of its frames are there."""
        for visual, left, (frames, _) in zip(visuals, self.left, self.clips, strict=True):
            if visual.grid[0] == frames:  # otherwise each frame of it was several in the tower
                visual.present = left
                visual.scores = None if visual.scores is None else visual.scores[left]
                visual.key = None if visual.key is None else visual.key[left]


@contextmanager
def merging(
    method: Compressor, layers: Sequence[torch.nn.Module], clips: Sequence[tuple[int, int]], last: int
) -> Iterator[Merging | None]:
    """Merge frames after the layers that the method names, none behind the first `last`, inside this block.

    None if there is nothing to merge: no such layer, or no clip of several frames.
    """
    after = {number for number in method.merges_after(len(layers)) if number <= last}
    if not after or all(frames == 1 for frames, _ in clips):
        yield None
        return
    state = Merging(method, clips)
    with ExitStack() as stack:
        for number, layer in enumerate(layers, 1):
            if number >= min(after):
                wrap_forward(stack, layer, functools.partial(state.forward, number in after))
        yield state
