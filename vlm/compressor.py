"""Base of the methods that shorten what a vision tower hands to the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from mmaccel.errors import SettingError
from mmaccel.method import is_count

from .method import DecoderMethod, is_share

VISUAL_FAMILIES = frozenset(
    {"llava_onevision", "llava_next_video", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm"}
)
COMPRESSORS = frozenset(
    f"vlm.{name}" for name in ("DyCoke", "EarlyTom", "FastVID", "HoliTom", "IDPruner", "VidCom2", "VisionZip")
)


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

    def count(self, length: int) -> int:
        """Visual tokens to keep of `length`, at least 1."""
        keep, tokens = getattr(self, "keep"), getattr(self, "tokens")  # noqa: B009  fields of subclasses
        return min(length, max(1, round(keep * length)) if tokens is None else tokens)

    def _check_keep(self) -> None:
        """`keep` or `tokens`, one of the two, each in its range."""
        keep, tokens = getattr(self, "keep"), getattr(self, "tokens")  # noqa: B009
        if (keep is None) == (tokens is None):
            raise SettingError(
                f"{type(self).__name__}(keep={keep!r}, tokens={tokens!r}): give one of the two,"
                f" such as {type(self).__name__}(keep=None, tokens=256)"
            )
        if tokens is None:
            self._require(is_share(keep), "keep", "above 0 and at most 1, a share of the visual tokens")
        else:
            self._require(is_count(tokens), "tokens", "a whole number of at least 1")


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
