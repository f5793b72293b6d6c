"""Base of the methods that shorten what a vision tower hands to the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from ..decoder.call import Call, Run
from ..decoder.method import DecoderMethod

if TYPE_CHECKING:
    from .inner import Cut


# Families of the adapters that give a language model visual tokens at placeholders of the prompt.
VISUAL_FAMILIES = frozenset(
    {"internvl", "llava_next_video", "llava_onevision", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm"}
)
# Each of them shortens the prompt: one is enough.
COMPRESSORS = frozenset(
    f"vlm.{name}"
    for name in (
        "DyCoke",
        "EarlyTom",
        "FastV",
        "FastVID",
        "FrameFusion",
        "HoliTom",
        "IDPruner",
        "StreamingCompression",
        "VidCom2",
        "VisionZip",
    )
)


# Those that drop tokens inside the language model leave caches of different lengths behind, which these cannot have.
CACHE_METHODS = frozenset({"vlm.CompressKV", "vlm.SelectKV"})


class Compressed(NamedTuple):
    """What is left of the `F` frames of `N` tokens of one video, `K` tokens in all.

    Attributes
    ----------
    tokens : `[K, D]`
        Kept or merged features, in the order in which the language model reads them: frames never go back.
    anchor_index : int64 `[K]`
        Which of the ``F * N`` input tokens each stands at, all different. Positions, newline tokens and pictures
        follow from it.
    size : `[K]`
        How many input tokens each is the mean of; 1 for a kept one.
    """

    tokens: torch.Tensor
    anchor_index: torch.Tensor
    size: torch.Tensor


@dataclass(frozen=True)
class Compressor(DecoderMethod):
    """Gives the language model fewer visual tokens.

    Subclasses have the fields `keep` and `tokens`, and implement :meth:`compress`, a pure function of one video.

    Class attributes
    ----------------
    needs_attention
        Whether :meth:`compress` needs `scores`: the attention that each token receives in the vision tower.
    needs_key
        Whether it needs `key`, the attention keys of the vision tower.
    """

    families: ClassVar[frozenset[str] | None] = VISUAL_FAMILIES
    excludes: ClassVar[frozenset[str]] = COMPRESSORS
    neutral: ClassVar[dict[str, Any]] = {"keep": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"keep": 0.25}
    attends: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False
    needs_key: ClassVar[bool] = False

    @property
    def is_neutral(self) -> bool:
        return getattr(self, "keep", None) == 1.0

    def compress(
        self,
        features: torch.Tensor,
        scores: torch.Tensor | None = None,
        grid: tuple[int, int] | None = None,
        key: torch.Tensor | None = None,
    ) -> Compressed:
        """Shorten one video.

        Parameters
        ----------
        features : `[F, N, D]`
            Projected and pooled, as the language model would get them. A picture is one frame.
        scores : `[F, N]`
            Attention that each token receives in the vision tower, mean over heads and queries; methods with
            `needs_attention` only.
        grid
            Rows and columns of a frame, ``rows * columns == N``; None takes a square.
        key : `[F, N, E]`
            Keys of the vision tower's last layer, pooled alike; methods with `needs_key` only.
        """
        raise NotImplementedError  # pragma: no cover

    def lacks(self, frames: int, cells: int) -> str | None:
        """What a video of so many frames and tokens a frame loses at these settings that the method is for, or None."""
        return None

    def merges_after(self, layers: int) -> tuple[int, ...]:
        """After which of so many layers of the vision tower frames merge."""
        return ()

    def merge(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Merge like frames of one video in the tower, `[F, N, E]` to `[F', N, E]`; and where each begins, `[F']`."""
        raise NotImplementedError  # pragma: no cover

    def cuts(self, layers: int) -> dict[int, Cut]:
        """For each layer of a decoder of so many before which more visual tokens go, what stays of them."""
        return {}

    def after(self, call: Call) -> None:
        """The layers before such a layer tell what to keep."""
        if call.run.cuts is not None:
            call.run.cuts.watch(call)

    def idle(self, run: Run) -> str:
        return "the call had no picture or video, or too little of it to leave any out"

    def count(self, length: int) -> int:
        """Visual tokens to keep of `length`, at least 1."""
        keep, tokens = getattr(self, "keep"), getattr(self, "tokens")  # noqa: B009  fields of subclasses
        return min(length, max(1, round(keep * length)) if tokens is None else tokens)

    def _check_keep(self) -> None:
        """`keep` or `tokens`, one of the two, each in its range."""
        self._check_share("keep", of="the visual tokens", least=1, example=256)


def attention(scores: torch.Tensor | None) -> torch.Tensor:
    """The scores `[F, N]` in float32; a `ValueError` where a method needs them and has none."""
    if scores is None:
        raise ValueError("this method goes by attention: give scores `[F, N]`, such as torch.rand(F, N)")
    return scores.float()


def chosen(features: torch.Tensor, index: torch.Tensor) -> Compressed:
    """The tokens of `features` `[F, N, D]` at sorted flat indices, unchanged."""
    index = index.sort().values
    return Compressed(features.flatten(0, 1)[index], index, torch.ones_like(index))


def top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` highest scores, ties by index, in ascending order of index."""
    return scores.sort(descending=True, stable=True).indices[:count].sort().values


def everything(
    _: Compressor,
    features: torch.Tensor,
    scores: torch.Tensor | None = None,
    grid: tuple[int, int] | None = None,
    key: torch.Tensor | None = None,
) -> Compressed:
    """The `compress` of methods that leave all tokens to the language model, which drops them itself."""
    return chosen(features, torch.arange(features.shape[0] * features.shape[1], device=features.device))
