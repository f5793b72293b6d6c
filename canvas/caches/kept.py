"""KeptStates: what all passes with kept keys and values have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.stepping.tensors import count_bytes

# Of a model that a cache does not reach.
NOT_REACHED = (
    "does not use transformers' attention interface, by which caches keep keys and values; the methods of canvas that"
    " are no cache work on it"
)
# Of a step that is gone through by hand, where a method computes the end of a canvas alone.
NOT_THE_END = (
    "the canvas of this step goes on behind its block, or has masks before it, and caches and canvas.FreeDave take its"
    " end for the block: give the model the canvas up to the end of the block"
)
OTHER_ROWS = (
    "the model has read other rows than this step has, as for guidance by one batch, and canvas.FreeDave verifies a"
    " pass of the same rows: use it without guidance"
)


class KeptStates(ABC):
    """Keys and values by layer, and what attention does with them in the pass that runs.

    Attributes
    ----------
    reused : int
        Passes over a part of the canvas.
    most_bytes : int
        The most that was kept.
    mode : str
        What attention does in this pass; empty between passes.
    """

    def begin(self) -> None:
        """Keep nothing, for a new run."""
        self.reused = self.most_bytes = 0
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.mode, self._thread = "", 0

    def _note_bytes(self) -> None:
        self.most_bytes = max(self.most_bytes, count_bytes(self.kept))

    def _within(self, mode: str, original: Callable[..., Any], ids: torch.Tensor, kwargs: dict[str, Any]) -> Any:
        """Logits of a pass in which attention does what `mode` says.

        Raises an `UnsupportedTargetError` if nothing was kept: a model may compute its attention in another way than
        its class tells, and later passes would do without the context.
        """
        self.mode, self._thread = mode, threading.get_ident()
        try:
            logits = original(ids, **kwargs).logits
        finally:
            self.mode = ""
        if mode == "keep" and not self.kept:
            raise UnsupportedTargetError(f"the model {NOT_REACHED}")
        return logits

    def attend(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In place of a layer's attention; what another thread computes with the model meanwhile is left alone."""
        ours = self.mode and self._thread == threading.get_ident()
        return self._attend(original, *args, **kwargs) if ours else original(*args, **kwargs)

    @abstractmethod
    def _attend(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What attention does in a pass with a mode."""


def other_blocks(own: int, length: int, cached: bool) -> str:
    """The warning of a call whose blocks are not of the model's `own` length, beside a cache that is exact by those."""
    inexact = ". With other blocks a cache is not exact" if cached else ""
    return (
        f"the model fills blocks of {own}, and this call has blocks of {length}: pass block_length={own}, or set it in"
        f" the scheduler{inexact}"
    )


def why_apart(ids: torch.Tensor, block: torch.Tensor, mask: int) -> str:
    """Why the canvases `[R, N]` of a pass are not those whose block `[B, L]` a step gets; empty if they are.

    The first rows or the last may be, beside those of guidance. Where a mask stands before a block at the end, the
    step's may be one before it that is as empty.
    """
    own, length = len(block), block.shape[1]
    ends = (
        torch.equal(rows[:, -length:], block) and not (rows[:, -length - 1 : -length] == mask).any()
        for rows in (ids[:own], ids[-own:])
    )
    if not any(ends):
        return NOT_THE_END
    return "" if len(ids) == own else OTHER_ROWS


def with_places(ids: torch.Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a pass with the positions that the model would count itself, of which parts are computed alone."""
    if kwargs.get("position_ids") is not None:
        return kwargs
    return {**kwargs, "position_ids": torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)}
