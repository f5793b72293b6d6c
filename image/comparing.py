"""How `compare` runs, judges and shows an autoregressive image model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mmaccel.adapter import Adapter
from mmaccel.comparison.trial import BaseTrial, Metric, Shown, seeded
from mmaccel.decoding.setting import setting
from mmaccel.errors import UnsupportedTargetError
from mmaccel.plan import Plan
from mmaccel.session import Session

from .families.adapter import ImageAdapter, prompt_tokens
from .generation import FAMILIES
from .quality import nats_per_token

SURPRISE = Metric(
    "surprise",
    "surprise",
    "surprise of the plain model at the picture in nats per token, lower is better; compare with plain pictures",
    higher_is_better=False,
)
SAME = Metric("same", "same tokens", "share of tokens that the plain picture has too; two samples share few", ".1%")


class ImageTrial(BaseTrial):
    """A call of `generate` that writes pictures, or of a pipeline around it.

    A method that keeps the noise gives the plain picture again. Samples of other exact methods have the distribution of
    the plain ones and share no noise with them, so that a distance between the two says nothing. The plain model's
    surprise at a picture does, where the family tells it.
    """

    no_simple = "every token of a picture has to be drawn, and other sampling settings save no time"

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        super().__init__(adapter, inputs, processor)
        assert isinstance(adapter, ImageAdapter)
        self.images = adapter
        self.is_pipeline = not hasattr(adapter.target, "generate")
        if not self.is_pipeline and not adapter.makes_images(dict(inputs)):
            raise UnsupportedTargetError(
                "this call writes no picture: pass all that the processor gives, for Janus generation_mode='image' too"
            )
        self.plain_inputs = inputs if self.is_pipeline else {**inputs, **adapter.plain_arguments(dict(inputs))}
        self.tells_surprise = adapter.family == "janus"  # whose results are the codes alone
        without = self.is_pipeline or self.tells_surprise
        self.prompt = 0 if without else prompt_tokens(dict(inputs)).shape[1]  # tokens of it that stand in each result
        self.metrics = (SURPRISE, SAME) if self.tells_surprise else (SAME,)
        self.draws = bool(self.is_pipeline or setting(adapter.model, inputs, "do_sample"))
        self.seedless = "" if self.draws else "without do_sample=True nothing is drawn"

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Any:
        with seeded(seed, self.images.model.device) as generator:
            if self.is_pipeline:
                return target(**self.arguments(target, self.inputs), generator=generator)
            call = self.inputs if isinstance(target, Session) else self.plain_inputs
            result = target.generate(**self.arguments(target, call))
        return result if isinstance(result, torch.Tensor) else result.sequences

    def equal(self, one: Any, other: Any) -> bool:
        return self._same(one, other) == 1

    def judge(self, plain: Any, other: Any) -> dict[str, float]:
        found = {SAME.key: self._same(plain, other)}
        if self.tells_surprise:
            found[SURPRISE.key] = float(nats_per_token(self.images, self.inputs, other).mean())
        return found

    def _same(self, one: Any, other: Any) -> float:
        one, other = (x if isinstance(x, torch.Tensor) else _pixels(x) for x in (one, other))
        if one.shape != other.shape:
            return 0.0
        return float((one == other)[:, self.prompt :].float().mean())

    @torch.no_grad()
    def show(self, output: Any) -> Shown:
        if self.is_pipeline:
            return Shown([[picture] for picture in output[0]])
        if self.images.family not in FAMILIES:
            return Shown()
        painter = FAMILIES[self.images.family][1]("", self.target, self.processor)
        return Shown([[picture] for picture in painter.pictures(output, self.inputs)])


def verdict(plain: torch.Tensor, other: torch.Tensor, plan: Plan) -> str:
    """What the tokens of a plain and an accelerated picture with one seed say of the promise of an exact method."""
    if not plan.exact:
        return ""
    if torch.equal(plain, other):
        return "both pictures are the same, token for token"
    if not all(getattr(method, "keeps_noise", False) for method in plan.methods):
        return "the pictures differ as two samples of one prompt do: the method keeps the distribution, not the noise"
    return (
        "the pictures differ though they share their noise: rounding turned a near-tie between two tokens,"
        " and both are samples of the model's own distribution"
    )


def _pixels(output: Any) -> torch.Tensor:
    """Pictures of a pipeline, `[B, H, W, C]`."""
    return torch.stack([torch.from_numpy(np.array(picture)) for picture in output[0]])
