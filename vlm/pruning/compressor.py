"""Base of the methods that shorten the visual tokens before or inside the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.machine import unrounded

from ..decoder.call import AttentionCall, GenerateRun
from ..decoder.method import DecoderMethod
from .compressed import Compressed, everything
from .row import Cut

# Families of the adapters that give a language model visual tokens at placeholders of the prompt.
VISUAL_FAMILIES = frozenset({"llava_next_video", "llava_onevision", "page_reader", "vision_language"})
# Dropping tokens inside the language model leaves keys of different lengths, which these cannot have.
CACHE_METHODS = frozenset({"decoding cache"})
MANY = 99  # layers of a tower, to ask whether a method would merge frames in any


@dataclass(frozen=True)
class Compressor(DecoderMethod):
    """Gives the language model fewer visual tokens.

    Subclasses implement :meth:`shorten`, a pure function of one video, or drop tokens inside the language model, by
    :meth:`cuts`.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.25; None where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.

    Class attributes
    ----------------
    needs_attention
        Whether it needs `scores`: the attention that each token receives in the vision tower.
    needs_key
        Whether it needs `key`, the attention keys of the vision tower.
    compares_frames
        Whether what it keeps of a frame depends on other frames of the clip.
    """

    keep: float | None = 0.25
    tokens: int | None = None

    families: ClassVar[frozenset[str] | None] = VISUAL_FAMILIES
    role: ClassVar[str] = "visual tokens"
    neutral: ClassVar[dict[str, Any]] = {"keep": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"keep": 0.25}
    attends: ClassVar[bool] = False
    decodes: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False
    needs_key: ClassVar[bool] = False
    compares_frames: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check_share("keep", of="the visual tokens", least=1, example=256)

    @property
    def reads_tower(self) -> bool:
        """Whether it needs more of the vision tower than the features that it makes."""
        return self.needs_attention or self.needs_key or bool(self.merges_after(MANY))

    def compress(
        self, features: torch.Tensor, scores: torch.Tensor | None = None, key: torch.Tensor | None = None
    ) -> Compressed:
        """Shorten one video.

        Parameters
        ----------
        features : `[F, N, D]`
            Features after projection and pooling, as the language model would receive them. A picture is one frame.
        scores : `[F, N]`
            Attention that each token receives in the vision tower, mean over heads and queries; methods with
            `needs_attention` only.
        key : `[F, N, E]`
            Keys of the vision tower's last layer, pooled the same way; methods with `needs_key` only.

        Raises
        ------
        ValueError
            If the method needs scores, and there are none.
        """
        if not features.shape[0] * features.shape[1]:  # such as the second grid of a very thin picture
            return everything(features)
        with unrounded(features.device.type):
            return self.shorten(features, scores, key)

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        """The method's own implementation of :meth:`compress`; by default all tokens are kept."""
        return everything(features)

    def lacks(self, frames: int, cells: int) -> str | None:
        """A warning if these settings are too small for a video of this many frames and tokens per frame, or None."""
        return None

    def merges_after(self, layers: int) -> tuple[int, ...]:
        """The layers of the vision tower after which frames merge."""
        return ()

    def merge(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Merge like frames of one video in the tower, `[F, N, E]` to `[F', N, E]`; and where each begins, `[F']`."""
        raise NotImplementedError  # pragma: no cover

    def cuts(self, layers: int) -> dict[int, Cut]:
        """For each decoder layer before which visual tokens are dropped, the tokens that stay."""
        return {}

    def votes(self, layers: int) -> bool:
        return bool(self.cuts(layers)) and not self.is_neutral

    def after(self, call: AttentionCall) -> None:
        """The attention of the layers before it decides which ones."""
        if call.run.watch is not None:
            call.run.watch(call)

    def idle(self, run: GenerateRun) -> str:
        return "the call had no picture or video, or too little of it to leave any out"

    def count(self, length: int) -> int:
        """Visual tokens to keep of `length`, at least 1."""
        if self.tokens is not None:
            return min(length, self.tokens)
        assert self.keep is not None  # one of the two is given
        return min(length, max(1, round(self.keep * length)))
