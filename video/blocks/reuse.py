"""Reusing what a range of blocks adds to the streams of tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from mmaccel.errors import SettingError
from mmaccel.patching import wrap_forward
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import plus

from ..caches.step_cache import CacheStepper
from ..families.adapter import DiffusionTransformerAdapter, PipelineSession
from ..families.compiled import BLOCKS, refuse_compiled
from ..families.families import Family, arguments, family_of
from ..private import bringing
from ..steps import Forward

Streams = dict[str, Any]


class Reuse(Exception):  # noqa: N818  no error: it ends the first block's forward as soon as the decision is made
    """Raised within a block to end it early, since the whole range is reused."""


def added(before: Streams, after: Streams) -> Streams:
    """The residual of blocks in each stream; None for a stream that ends there."""
    return {name: None if x is None else plus(x, before[name], -1) for name, x in after.items()}


def added_again(residuals: Streams, streams: Streams) -> Streams:
    """The streams after skipped blocks: their earlier residual is added again."""
    return {name: None if x is None else plus(x, streams[name]) for name, x in residuals.items()}


class BlockStepper(CacheStepper):
    """One run in which the blocks between the `first` and the `last` ones run, or are replaced by their residual.

    The blocks' forwards are replaced on the instances for the time of the run. Subclasses set `skips` in
    :meth:`before`, or raise :class:`Reuse` from within the range's first block.
    """

    first: int = 0
    last: int = 0

    def __init__(self, session: PipelineSession, run: SamplerRun, method: Any) -> None:
        super().__init__(session, run, method)
        self.skips = False  # whether the range is replaced in this forward pass
        self.entry: Streams = {}
        self.leaves_out = False  # whether the pass has not all blocks, as for guidance by skipped layers: it runs
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
        family = family_of(denoiser, self.method.name)
        self.skips, total = False, len(family.block_list(denoiser))
        self.leaves_out = bool(arguments(denoiser, args, kwargs).get("skip_layers"))
        output = forward(*args, **kwargs)
        self.entry = {}
        return output, 1 - family.structure.share * (1 - (self.first + self.last) / total) if self.skips else 1.0

    def block(
        self, family: Family, block: torch.nn.Module, index: int, end: int, forward: Forward, *args: Any, **kwargs: Any
    ) -> Any:
        """The forward of one block."""
        if self.leaves_out:
            return forward(*args, **kwargs)
        streams = family.streams(block, args, kwargs)
        if index == 0:
            self.begin(streams, family)
        if not self.first <= index < end:
            return forward(*args, **kwargs)
        if index == self.first:
            self.entry = dict(streams)
            self.before(streams, family)
        elif not self.entry:  # a hook answered for the block where the range begins, as a guider's that skips it
            self.leaves_out = True
            return forward(*args, **kwargs)
        if not self.skips:
            try:
                output = forward(*args, **kwargs)
            except Reuse:
                self.skips = True
        if self.skips:
            # from the entry, since control nets add to the streams between the blocks, and the residual has that
            return family.as_output(added_again(self.cache.state.residual, self.entry) if index == end - 1 else streams)
        if index == end - 1:
            self.remember(family.returned(output))
        return output

    def remember(self, streams: Streams) -> None:
        """Keep the residual of the range."""
        self.cache.computed(added(self.entry, streams))

    def close(self) -> None:
        self.entry = {}
        super().close()


def check_families(adapter: DiffusionTransformerAdapter, method: str) -> list[tuple[Family, torch.nn.Module]]:
    """The families of all denoisers, or an `UnsupportedTargetError`, before anything is touched."""
    refuse_compiled(method, BLOCKS, *adapter.denoisers())
    return [(family_of(denoiser, method), denoiser) for denoiser in adapter.denoisers()]


def refuse_grouped(method: str, blocks: Iterable[torch.nn.Module], skips: Iterable[bool]) -> None:
    """Raise a `SettingError` if a block may be left out that brings the weights of one that runs."""
    left_out = dict(zip(blocks, skips, strict=True))
    for block, is_left_out in left_out.items():
        if not is_left_out and left_out.get(bringing(block)):
            raise SettingError(
                f"{method} leaves out blocks of {type(block).__name__}, and group offloading brings the weights of"
                " those behind with theirs: enable_group_offload(..., num_blocks_per_group=1)"
            )
