"""Middle blocks of a transformer reuse their last residual while the first blocks hardly change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.errors import SettingError
from mmaccel.method import Advice, is_count
from mmaccel.registry import register
from mmaccel.stepping.run import SamplerRun

from ..caches.step_cache import CacheStepper, StepCache
from ..families.adapter import DiffusionTransformerAdapter, PipelineSession
from ..families.families import Family
from ..families.structure import reads_earlier
from .reuse import BlockStepper, Streams, check_families, refuse_grouped


@register("video")
@dataclass(frozen=True)
class BlockCache(StepCache):
    """The first blocks always run and decide by their own change whether the middle blocks' residual is reused.

    The residual of the first blocks is compared with that of the last computed step: under `threshold` the middle
    blocks are replaced by their residual of that step, and the last blocks run on top. Works on every family whose
    blocks are known, from Wan to Flux. Lossy.

    Parameters
    ----------
    threshold
        Relative change of the first blocks' residual below which the middle blocks are reused; 0 is exact.
        Default 0.08, as in DBCache.
    first
        How many blocks at the beginning always run; default 1, as in First Block Cache. DBCache takes 8 for large
        transformers: a later decision is better, but saves less.
    last
        How many blocks at the end always run; default 0, as in both. On HunyuanDiT no more than `first`, whose output
        they read.
    warmup
        First steps that are always computed, at least 1; default 5.
    cooldown
        Last steps that are always computed; default 1.

    Raises
    ------
    SettingError
        If a setting is outside its range, or `first` and `last` leave no block between them, or the last read what
        others than the first made.
    UnsupportedTargetError
        If the transformer's family is not supported; lists those that are.

    Examples
    --------
    >>> str(BlockCache(threshold=0.12, first=8))
    'video.BlockCache(threshold=0.12, first=8)'
    """

    paper = "DBCache in cache-dit and First Block Cache in ParaAttention, 2025"
    advice: ClassVar[Advice] = Advice(
        "Pipelines that change unevenly from step to step, and transformers with many blocks.",
        "At half the time it is behind fewer steps on the small model.",
        "threshold=0.15",
    )
    needs_all_tokens = True
    neutral = {"threshold": 0.0}
    engaging = {"threshold": 1e6, "warmup": 2}

    threshold: float = 0.08
    first: int = 1
    last: int = 0
    warmup: int = 5
    cooldown: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.first), "first", "an integer of at least 1")
        self._require(is_count(self.last, 0), "last", "an integer of at least 0")

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        super().check(adapter)
        for family, denoiser in check_families(adapter, self.name):
            blocks = family.block_list(denoiser)
            if self.first + self.last >= len(blocks):
                raise SettingError(
                    f"BlockCache(first={self.first}, last={self.last}): together they must be fewer than the"
                    f" {len(blocks)} blocks of {type(denoiser).__name__}"
                )
            read = sum(map(reads_earlier, blocks[len(blocks) - self.last :]))
            if read > self.first:
                raise SettingError(
                    f"BlockCache(first={self.first}, last={self.last}): these last blocks of {type(denoiser).__name__}"
                    f" read what its first {read} made: pass first={read}"
                )
            refuse_grouped(
                self.name, blocks, (self.first <= index < len(blocks) - self.last for index in range(len(blocks)))
            )

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        return _Stepper(session, run, self)


class _Stepper(BlockStepper):
    def __init__(self, session: PipelineSession, run: SamplerRun, method: BlockCache) -> None:
        self.first, self.last = method.first, method.last
        self.start: Any = None
        super().__init__(session, run, method)

    def begin(self, streams: Streams, family: Family) -> None:
        if self.cache.leads:
            self.start = streams[family.hidden]

    def before(self, streams: Streams, family: Family) -> None:
        """The first blocks have run: `streams` is what they made of the tokens."""
        if self.cache.leads:
            hidden = streams[family.hidden]
            self.cache.compare([hidden - self.start.to(hidden.device)])  # which may be another GPU
            self.start = None
        self.skips = self.cache.skips
