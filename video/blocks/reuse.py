"""Reusing what a range of blocks adds to the streams of tokens."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.patching import wrap_forward
from mmaccel.stepping.tensors import plus

from ..caches.step_cache import CacheStepper
from ..families.adapter import DiffusionTransformerAdapter, PipelineSession
from ..families.compiled import BLOCKS, refuse_compiled
from ..families.families import Family, family_of
from ..steps import Forward, Run

Streams = dict[str, Any]


class Reuse(Exception):  # noqa: N818  no error: it ends the first block's forward as soon as the decision is made
    """Raised within a block that need not be finished, since the whole range is reused."""


@dataclass
class BlockRange:
    """What one guidance branch remembers: what the range added to each stream when it last ran."""

    step: int = -1
    residual: Any = None
    seen: Any = None  # what the method compares
    error: float = 0.0  # since it was last computed


class BlockStepper(CacheStepper):
    """One run in which the blocks from `first` on, but for the `last` ones, are run or replaced by their residual.

    The blocks' forwards are replaced on the instances for the time of the run. Subclasses set `skips` in
    :meth:`before`, or raise :class:`Reuse` from within the range's first block.
    """

    branch_state: ClassVar[type] = BlockRange
    first: ClassVar[int] = 0
    last: ClassVar[int] = 0

    def __init__(self, session: PipelineSession, run: Run, method: Any) -> None:
        super().__init__(session, run, method)
        self.stack = ExitStack()
        self.skips = False  # whether the range is replaced in this forward pass
        self.entry: Streams = {}
        self.total = 1
        for denoiser in [] if method.exact else session.adapter.denoisers():
            self.watch(denoiser, family_of(denoiser, method.name))

    def watch(self, denoiser: torch.nn.Module, family: Family) -> None:
        """Route the blocks of a denoiser through :meth:`block`."""
        blocks = family.block_list(denoiser)
        for index, block in enumerate(blocks):
            call = functools.partial(self.block, family, block, index, len(blocks) - self.last)
            wrap_forward(self.stack, block, call)

    def begin(self, streams: Streams, family: Family) -> None:
        """Called with the streams before the first block of all."""

    def before(self, streams: Streams, family: Family) -> None:
        """Called with the streams before the range; sets `skips` where that is known by then."""

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        self.skips, self.total = False, len(family_of(denoiser, self.method.name).block_list(denoiser))
        output = forward(*args, **kwargs)
        self.entry = {}
        return output, (self.first + self.last) / self.total if self.skips else 1.0

    def block(
        self, family: Family, block: torch.nn.Module, index: int, end: int, forward: Forward, *args: Any, **kwargs: Any
    ) -> Any:
        """The forward of one block."""
        streams = family.streams(block, args, kwargs)
        if index == 0:
            self.begin(streams, family)
        if not self.first <= index < end:
            return forward(*args, **kwargs)
        if index == self.first:
            self.entry = dict(streams)
            self.before(streams, family)
        if not self.skips:
            try:
                output = forward(*args, **kwargs)
            except Reuse:
                self.skips = True
        if self.skips:
            # from the entry, since control nets add to the streams between the blocks, and the residual has that
            return family.as_output(self.replaced() if index == end - 1 else streams)
        if index == end - 1:
            self.remember(family.returned(output))
        return output

    def replaced(self) -> Streams:
        """The streams behind the range, without running it."""
        residuals = self.state.residual
        return {name: None if r is None else plus(r, self.entry[name]) for name, r in residuals.items()}

    def remember(self, streams: Streams) -> None:
        """Keep what the range added."""
        state = self.state
        state.residual = {n: None if x is None else plus(x, self.entry[n], -1) for n, x in streams.items()}
        state.step, state.error = self.run.step, 0.0

    def close(self) -> None:
        self.stack.close()
        self.entry = {}
        super().close()


def check_families(adapter: DiffusionTransformerAdapter, method: str) -> list[tuple[Family, torch.nn.Module]]:
    """The families of all denoisers, or an `UnsupportedTargetError`, before anything is touched."""
    refuse_compiled(method, BLOCKS, *adapter.denoisers())
    return [(family_of(denoiser, method), denoiser) for denoiser in adapter.denoisers()]
