"""VisionZip: the tokens that receive most attention, and a few that stand for the others; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from .clustering import means, others
from .compressed import Compressed, attention, in_order, joined, top
from .compressor import Compressor
from .segments import apportion


@register("vlm")
@dataclass(frozen=True)
class VisionZip(Compressor):
    """Keep the tokens that the vision tower attends to, and merge the others into a few; lossy.

    VisionZip: Longer is Better but Not Necessary in Vision Language Models (Yang et al., 2024). Frame by frame:
    dominant tokens go by the attention they receive; contextual ones lie evenly spaced among the others, which each
    join the one of the most similar key.

    Parameters
    ----------
    keep
        Share of the visual tokens to give to the language model, above 0 and up to 1 (plain), default 0.25; None
        where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.
    dominant
        Share of those that are dominant, from 0 to 1, default 54/64 as in the paper.

    Notes
    -----
    Lossy. A contextual token is itself plus the mean of the tokens that join it, a sum and no mean, as in the
    reference code. A frame's tokens are in spatial order; the reference code has the dominant ones first. Where the
    vision tower gives no keys, the features are compared instead.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> VisionZip(keep=None, tokens=8).compress(torch.randn(1, 64, 8), torch.rand(1, 64)).size.sum()
    tensor(64)
    """

    dominant: float = 54 / 64

    paper: ClassVar[str] = "VisionZip: Longer is Better but Not Necessary in Vision Language Models, 2024"
    advice: ClassVar[Advice] = Advice(
        "Single pictures, and clips in which every frame is looked at by itself.",
        "What stands still is kept again in every frame, which leaves less room for what changes.",
    )
    needs_attention: ClassVar[bool] = True
    needs_key: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_number(self.dominant, 0, 1), "dominant", "from 0 to 1, a share of the tokens that are kept")

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        scores = attention(scores)
        frames, length, _ = features.shape
        unit = normalize((features if key is None else key).float(), dim=-1)
        parts = []
        for frame, count in enumerate(apportion([1] * frames, self.count(frames * length), [length] * frames)):
            if count:
                tokens, place, size = self._frame(features[frame], scores[frame], unit[frame], count)
                parts.append(Compressed(tokens, place + frame * length, size))
        return joined(parts)

    def _frame(self, features: torch.Tensor, scores: torch.Tensor, unit: torch.Tensor, count: int) -> Compressed:
        dominant = top(scores, round(count * self.dominant))
        rest = others(dominant, len(features))
        target = rest[spaced(len(rest), count - len(dominant))]
        index = torch.cat([dominant, target])
        tokens, size = features[index], torch.ones_like(index)
        if len(target):
            joining = others(index, len(features))
            mean, joined = means(features[joining], (unit[joining] @ unit[target].T).argmax(1), len(target))
            tokens[len(dominant) :] = (features[target].float() + mean).to(features.dtype)
            size[len(dominant) :] += joined
        return in_order(tokens, index, size)


def spaced(length: int, count: int) -> list[int]:
    """`count` places with the same whole step between them, from 0.

    Examples
    --------
    >>> spaced(10, 3)
    [0, 3, 6]
    """
    return list(range(0, length, max(1, length // max(1, count))))[:count]
