"""RollingContext: a video drawn in blocks sees its first blocks and its latest, however long it is."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_count
from mmaccel.patching import wrap_forward, wrap_method
from mmaccel.registry import register

from ..families.adapter import IN_BLOCKS, DiffusionMethod, PipelineSession
from ..steps import Forward

EXAMPLE = """import mmaccel
from diffusers import AnyFlowFARPipeline
from mmaccel import video

pipe = AnyFlowFARPipeline.from_pretrained("nvidia/AnyFlow-FAR-Wan2.1-1.3B-Diffusers")
with mmaccel.accelerate(pipe, {method}) as fast:
    frames = fast("a boat on a river", num_frames=957, chunk_partition=[3] * 80).frames[0]
    print(fast.report)"""


@register("video")
@dataclass(frozen=True)
class RollingContext(DiffusionMethod):
    """Let each block of a long video see the first blocks and the latest alone (Rolling Forcing, Liu et al., 2025).

    A pipeline that draws in blocks computes keys and values of all finished blocks anew after each: time grows with the
    square of their number, memory with it, and places go on beyond what the model was trained on. Here a block sees at
    most `blocks` others, counted from the beginning as if those between had never been, as in Rolling Forcing. The
    first blocks are kept as attention sinks, which hold the scene together (Xiao et al., 2023).

    Parameters
    ----------
    blocks
        Most blocks that a new one sees; default 8. Take one less than the model was trained on.
    first
        How many of them are the first of the video; default 1, the others are the latest.

    Notes
    -----
    Lossy: what lies between is forgotten. Bit-identical while a video has at most `blocks` + 1 blocks.

    Raises
    ------
    SettingError
        If a setting is out of range.
    UnsupportedTargetError
        If the pipeline does not draw videos in blocks.

    Examples
    --------
    >>> print(RollingContext(blocks=6, first=2))
    video.RollingContext(blocks=6, first=2)
    """

    paper: ClassVar[str] = "Rolling Forcing: Autoregressive Long Video Diffusion in Real Time, 2025"
    families: ClassVar[frozenset[str] | None] = IN_BLOCKS
    advice: ClassVar[Advice] = Advice(
        "Videos of more blocks than the model was trained on, and of minutes.",
        "What was seen between the first blocks and the latest.",
        example=EXAMPLE,
    )
    nesting: ClassVar[int] = 1
    neutral: ClassVar[dict[str, Any]] = {"blocks": 10_000}
    engaging: ClassVar[dict[str, Any]] = {"blocks": 1, "first": 0}

    blocks: int = 8
    first: int = 1

    def __post_init__(self) -> None:
        self._require(is_count(self.blocks), "blocks", "an integer of at least 1")
        self._require(is_count(self.first, 0) and self.first < self.blocks, "first", "an integer below blocks")

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        for denoiser in session.adapter.denoisers():
            wrap_forward(stack, denoiser, functools.partial(self._forward, session, denoiser))
            wrap_method(stack, denoiser, "build_attention_mask", self._mask)

    def _forward(
        self, session: PipelineSession, denoiser: torch.nn.Module, original: Forward, *args: Any, **kwargs: Any
    ) -> Any:
        """A pass of the transformer, which fills the keys and values of finished blocks or draws the next one."""
        flag = kwargs.get("kv_cache_flag")
        if not kwargs.get("kv_cache") or flag is None:
            session.report.warn("RollingContext bounded nothing: the call was made without keys and values")
            return original(*args, **kwargs)
        partition = kwargs["chunk_partition"]
        finished = len(partition) - (not flag["is_cache_step"])
        if finished > self.blocks:
            kept = self._kept(finished)
            change = _remembered if flag["is_cache_step"] else _drawn
            kwargs |= change(denoiser, kwargs, kept)
            session.report.engaged = True
            session.report.details["context"] = {"blocks": self.blocks, "left out": finished - self.blocks}
        elif flag["is_cache_step"]:
            _fit(denoiser, kwargs["kv_cache"], partition, *kwargs["hidden_states"].shape[-2:])
        return original(*args, **kwargs)

    def _kept(self, finished: int) -> list[int]:
        """Numbers of the blocks that are seen, of more finished ones than that."""
        return [*range(self.first), *range(finished - self.blocks + self.first, finished)]

    def _mask(self, original: Forward, *args: Any, **kwargs: Any) -> Any:
        """The mask of a pass that fills keys and values, of the blocks that it is left with."""
        partition = kwargs.get("chunk_partition", ())
        if kwargs.get("mode") == "cache" and len(partition) > self.blocks:
            kwargs["chunk_partition"] = [partition[block] for block in self._kept(len(partition))]
        return original(*args, **kwargs)


def _drawn(denoiser: Any, given: dict[str, Any], kept: list[int]) -> dict[str, Any]:
    """What changes in a pass over the next block, where only some of the finished ones are kept."""
    partition = given["chunk_partition"]
    flag = {**given["kv_cache_flag"], "num_cached_chunks": len(kept)}
    return {"chunk_partition": [*(partition[block] for block in kept), partition[-1]], "kv_cache_flag": flag}


def _remembered(denoiser: Any, given: dict[str, Any], kept: list[int]) -> dict[str, Any]:
    """What changes in a pass that fills keys and values, whose compressed ones get a place of their size."""
    partition = given["chunk_partition"]
    frames = torch.arange(sum(partition)).split(partition)
    index = torch.cat([frames[block] for block in kept]).to(given["hidden_states"].device)
    changed = {name: given[name].index_select(1, index) for name in ("hidden_states", "timestep", "r_timestep")}
    changed["chunk_partition"] = [partition[block] for block in kept]
    _fit(denoiser, given["kv_cache"], changed["chunk_partition"], *given["hidden_states"].shape[-2:])
    return changed


def _fit(
    denoiser: Any, cache: dict[int, dict[str, torch.Tensor]], partition: list[int], height: int, width: int
) -> None:
    """Give each layer's compressed keys and values room for the blocks that are kept, instead of for all to come."""
    config = denoiser.config
    frames = sum(partition[: max(0, len(partition) - config.full_chunk_limit + 1)])
    tokens = frames * (height // config.compressed_patch_size[1]) * (width // config.compressed_patch_size[2])
    for layer in cache.values():
        pair, rows, heads, room, dim = layer["compressed_cache"].shape
        if room != tokens:
            layer["compressed_cache"] = layer["compressed_cache"].new_zeros(pair, rows, heads, tokens, dim)
