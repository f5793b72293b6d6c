"""How `compare` runs, judges and shows a model that answers; its simple alternative is fewer frames."""

from __future__ import annotations

from os import PathLike
from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter
from mmaccel.comparison.difference import agreement
from mmaccel.comparison.trial import BaseTrial, Metric, Shown, seeded
from mmaccel.decoding.setting import setting
from mmaccel.errors import SettingError
from mmaccel.session import Session

from .answering import prepare
from .decoder.columns import COLUMNS
from .families.visual_adapter import VisualAdapter
from .input.arguments import FEATURES
from .input.processed import for_model
from .input.read_video import VideoFrames

AGREED = Metric("agreed", "same answers", "share of answers that equal those of the plain model, word for word", ".0%")
LIKE = Metric(
    "like",
    "same words",
    "words that an answer shares with the plain one in order, times two, over the words of both",
    ".0%",
)
A_TOKEN_EACH = ("input_ids", "attention_mask", *COLUMNS)
PIXELS = "pixel_values_videos"
SHOWN = (PIXELS, "pixel_values", "pixel_values_images", FEATURES)  # the frames of some families are pictures
NO_PIXELS = "every token of a text has to be written, and nothing of its prompt can be left out"
AGAIN = (
    "this is the time where a prompt, or its beginning, is stored: a first question takes a plain run, and the time to"
    " write what it read"
)
NO_FRAMES = (
    "this call shows no video of several frames, or one whose frames cannot be told apart in its arguments:"
    " give frames=, questions= and processor= instead"
)


class AnswerTrial(BaseTrial):
    """A call of `generate`: its own arguments, or `frames` and `questions` for the processor to prepare.

    A run begins without what the one before remembers: the same answer would come again, as it does for no other
    question.
    """

    unit: ClassVar[str] = "frames"
    remembers: ClassVar[bool] = False
    metrics = (AGREED, LIKE)

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        super().__init__(adapter, inputs, processor)
        questions = inputs.get("questions") or []
        self.asked = [questions] if isinstance(questions, str) else list(questions)
        self.calls: dict[int | None, dict[str, Any]] = {None: self._prepared(None)}
        self.draws = bool(setting(self.target, self.calls[None], "do_sample"))
        self.seedless = "" if self.draws else "without do_sample=True nothing is drawn"
        self.kept = _tokens_of_frames(adapter, self.calls[None]) if "frames" not in inputs else None
        self.count = len(inputs["frames"]) if "frames" in inputs else 0 if self.kept is None else int(self.kept.max())
        if not self.count:
            self.no_simple = NO_FRAMES if any(self.calls[None].get(name) is not None for name in SHOWN) else NO_PIXELS

    def _prepared(self, fewer: int | None) -> dict[str, Any]:
        """Arguments of `generate`."""
        call = dict(self.inputs)
        frames, questions = call.pop("frames", None), call.pop("questions", None)
        if (frames is None) != (questions is None) or (frames is not None and self.processor is None):
            raise SettingError(
                "frames=, questions= and processor= go together: give all three, or the inputs of generate"
            )
        if frames is None:
            return call if fewer is None else self._without(call, fewer)
        if isinstance(frames, str | PathLike):
            raise SettingError(f"frames={str(frames)!r} is a file: give vlm.read_video(file, frames=16)")
        asked = self.asked
        if not asked or not len(frames):
            raise SettingError(f"{len(frames)} frames and {len(asked)} questions: give at least one of each")
        chosen = frames if fewer is None else _only(frames, spread(len(frames), fewer).tolist())
        inputs = prepare(self.processor, chosen, asked)
        return {**for_model(inputs, self.target), **call}

    def _without(self, call: dict[str, Any], fewer: int) -> dict[str, Any]:
        """Prepared arguments with fewer frames and their placeholders."""
        frames = spread(self.count, fewer)
        assert self.kept is not None
        stay = (self.kept == 0) | torch.isin(self.kept, frames.to(self.kept.device) + 1)
        cut = {name: call[name][stay].view(len(stay), -1) for name in A_TOKEN_EACH if call.get(name) is not None}
        return {**call, **cut, PIXELS: call[PIXELS][:, frames]}

    def run(self, target: Any, seed: int, fewer: int | None = None) -> torch.Tensor:
        if fewer not in self.calls:
            self.calls[fewer] = self._prepared(fewer)
        call = self.calls[fewer]
        with seeded(seed):
            result = target.generate(**self.arguments(target, call))
        sequences: torch.Tensor = result if isinstance(result, torch.Tensor) else result.sequences
        ids = call.get("input_ids", call.get("inputs"))
        return sequences if ids is None else sequences[:, ids.shape[1] :]

    def report(self, session: Session, output: Any) -> dict[str, Any]:
        told = super().report(session, output)
        stored = told["details"].get("context", {}).get("from_store")
        return {**told, "warnings": [*told["warnings"], AGAIN]} if stored else told

    def visual_share(self, fewer: int) -> float | None:
        return fewer / self.count if self.count else None

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return torch.equal(one, other)

    def judge(self, plain: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
        return dict(zip((AGREED.key, LIKE.key), agreement(self.answers(plain), self.answers(other)), strict=True))

    def show(self, output: torch.Tensor) -> Shown:
        return Shown(texts=self.answers(output), names=self.asked)

    def answers(self, tokens: torch.Tensor) -> list[str]:
        """Answers in words; without a processor the numbers of their tokens."""
        if self.processor is None:
            return [" ".join(str(token) for token in row) for row in tokens.tolist()]
        return [answer.strip() for answer in self.processor.batch_decode(tokens, skip_special_tokens=True)]


def spread(count: int, fewer: int) -> torch.Tensor:
    """`fewer` of `count` frames, evenly from the first to the last.

    Examples
    --------
    >>> spread(8, 4).tolist()
    [0, 2, 5, 7]
    """
    return torch.linspace(0, count - 1, fewer).round().long()


def _only(frames: Any, places: list[int]) -> Any:
    """Some frames of a video, with their times where these are known."""
    return frames.only(places) if isinstance(frames, VideoFrames) else [frames[place] for place in places]


def _tokens_of_frames(adapter: Adapter, call: dict[str, Any]) -> torch.Tensor | None:
    """For each token of a prompt `[B, L]` the number of the frame it shows, from 1; 0 for all others.

    None where a row shows anything but one video, or its frames are not an axis of the pixels.
    """
    pixels = call.get(PIXELS)
    if not isinstance(adapter, VisualAdapter) or pixels is None or pixels.ndim != 5 or "input_ids" not in call:
        return None
    rows, frames = adapter.spans(call), pixels.shape[1]
    if rows is None or any(len(found) != 1 or found[0].frames != frames for found in rows):
        return None
    numbers = torch.zeros_like(call["input_ids"])
    for number, (span,) in enumerate(rows):
        area = span.rows * span.columns
        shown = torch.arange(1, frames + 1, device=numbers.device).repeat_interleave(area)
        numbers[number, span.first : span.first + frames * area] = shown
    return numbers
