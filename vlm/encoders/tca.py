"""TCA: CLIP's image tower condenses its patch tokens, and remembers what it was sure of; lossy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, Held, Method, is_count, is_number, is_share
from mmaccel.patching import wrap_forward, wrap_method
from mmaccel.registry import register
from mmaccel.session import Session

from ..families.image_text import ImageTextAdapter
from .condensing import Condensing
from .reservoir import Reservoir

EXAMPLE = """import mmaccel
import torch
from mmaccel import vlm
from transformers import CLIPConfig, CLIPModel

model = CLIPModel(CLIPConfig())  # yours: CLIPModel.from_pretrained("openai/clip-vit-base-patch16")
texts = torch.randint(1, 40000, (3, 8))  # three classes, as the processor of your model writes them
with mmaccel.accelerate(model, {method}) as fast, torch.no_grad():
    for picture in torch.randn(4, 1, 3, 224, 224):
        print(fast(input_ids=texts, pixel_values=picture).logits_per_image)
    print(fast.report)"""


@register("vlm")
@dataclass(frozen=True)
class TCA(Method[Session[ImageTextAdapter]]):
    """Prune and merge the patch tokens of CLIP's image tower, guided by earlier pictures of the session; lossy.

    Is Less More? Exploring Token Condensation as Training-free Test-time Adaptation (Wang et al., 2025). At a few
    depths the patches go that the class token attends to least, by their mean rank over heads, and the next ones merge
    into four. A reservoir holds the class tokens of pictures of which the model was sure, a few for each text that it
    compares with: where tokens go, the mean of the likest ones stands among the patches, and at the end their likeness
    corrects the logits.

    Parameters
    ----------
    keep
        Share of the patch tokens that the last layers have, above 0 and up to 1 (plain), default 0.8, about what the
        reference code's 0.035 at three depths leaves of 196.
    cuts
        Depths at which tokens go, evenly spread, at least 1, default 3 as the paper's: after 3, 6 and 9 layers of 12.
    reservoir
        Pictures to hold for each class; 0 for none, which condenses only. Default 3 as the reference code.
    weight
        What the vote of a picture in the reservoir adds to a logit at most, default 3.0 as the reference code for
        ImageNet; 0 leaves the logits as they are.
    sharpness
        How fast that vote falls as the picture gets less alike, default 5.0 as the reference code for ImageNet.
    depth
        How evenly layers count in that likeness: the last counts ``exp(1 / depth)`` times the first; default 0.1 as the
        reference code for ImageNet.

    Notes
    -----
    Lossy, and what a picture gets depends on those before it. Classes are the texts of the call, or those last given
    to `get_text_features`; other texts begin a new reservoir, though the pictures of their first call, which come
    before them, still get anchors of the old one. Logits are corrected where the model makes them, which
    `get_image_features` does not. A tower without texts is condensed without a reservoir. Pictures of one call get
    anchors of earlier calls, and vote for each other. The reference code cuts between attention and MLP, here tokens go
    after a layer; it ranks by the mean attention where its paper ranks within each head, keeps one more token for what
    was pruned, draws the first centre at random, and has anchors only when every class holds two pictures.

    Raises
    ------
    SettingError
        If a setting is out of range.

    Examples
    --------
    >>> print(TCA(keep=0.5))
    vlm.TCA(keep=0.5)
    """

    keep: float = 0.8
    cuts: int = 3
    reservoir: int = 3
    weight: float = 3.0
    sharpness: float = 5.0
    depth: float = 0.1

    paper: ClassVar[str] = "Is Less More? Exploring Token Condensation as Training-free Test-time Adaptation, 2025"
    advice: ClassVar[Advice] = Advice(
        "CLIP that sorts many pictures among the same texts, large towers most.",
        "What is thrown away is gone, and a wrong but sure answer speaks for itself later.",
        example=EXAMPLE,
    )
    families: ClassVar[frozenset[str] | None] = frozenset({ImageTextAdapter.family})
    role: ClassVar[str] = "visual tokens"
    adapts: ClassVar[bool] = True
    neutral: ClassVar[dict[str, Any]] = {"keep": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"keep": 0.5}

    def __post_init__(self) -> None:
        self._require(is_share(self.keep), "keep", "above 0 and at most 1, a share of the patch tokens")
        self._require(is_count(self.cuts), "cuts", "a whole number of at least 1")
        self._require(is_count(self.reservoir, 0), "reservoir", "a whole number of at least 0")
        self._require(is_number(self.weight, 0), "weight", "a number of at least 0")
        self._require(is_number(self.sharpness, 0), "sharpness", "a number of at least 0")
        self._require(is_number(self.depth, 0.01), "depth", "a number of at least 0.01")

    def held(self) -> tuple[Held, ...]:
        if not self.reservoir or self.keep == 1.0:
            return ()
        return (Held(f"class tokens of all layers, of {self.reservoir} pictures for each text"),)

    def shares(self, layers: int) -> dict[int, float]:
        """For each number of layers after which tokens go, the share of them that is left."""
        after = [round(layers * cut / (self.cuts + 1)) for cut in range(1, self.cuts + 1)]
        left = [self.keep ** (cut / self.cuts) for cut in range(1, self.cuts + 1)]
        return {number: share for number, share in zip(after, left, strict=True) if number and self.keep < 1.0}

    def attach(self, session: Session[ImageTextAdapter], stack: ExitStack) -> None:
        Adaptation(self, session).attach(stack)


class Adaptation:
    """TCA on one model: its passes are runs, and what they showed goes into the reservoir."""

    def __init__(self, method: TCA, session: Session[ImageTextAdapter]) -> None:
        self.method, self.session, self.adapter = method, session, session.adapter
        layers = self.adapter.layers
        self.condensing = Condensing(layers, method.shares(len(layers)))
        depths = torch.linspace(0, 1, len(layers))
        self.depths = (depths / method.depth).softmax(0)
        self.pooled: torch.Tensor | None = None
        self.within = False

    @property
    def reservoir(self) -> Reservoir | None:
        """That of the session, which a later run of it finds again."""
        if not self.method.reservoir or not self.condensing.counts or not self.adapter.has_texts:
            return None
        return self.session.memory.setdefault(self.method.name, Reservoir(self.method.reservoir))

    def attach(self, stack: ExitStack) -> None:
        """Wrap the calls of the model, and hook its layers, until `stack` closes."""
        if self.condensing.counts:
            self.condensing.attach(stack)
        wrap_forward(stack, self.adapter.tower, self._tower)
        if self.adapter.has_texts:
            wrap_forward(stack, self.adapter.target, self._compare)
            wrap_method(stack, self.adapter.target, "get_text_features", self._texts)
            wrap_method(stack, self.adapter.target, "get_image_features", self._pictures)

    def _tower(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces `forward` of the image tower."""
        with self.session.run():  # which refuses a call in the middle of another one, before that is touched
            self.condensing.begin(self.reservoir)
            output = original(*args, **kwargs)
            self.pooled = output[1].detach()
            self._report(len(self.pooled))
        return output

    def _texts(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces `get_text_features`: these are the classes."""
        output, reservoir = original(*args, **kwargs), self.reservoir
        if reservoir is not None:
            features = output[1] if isinstance(output, tuple) else output.pooler_output
            reservoir.begin(normalize(features, dim=-1))
        return output

    def _pictures(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces `get_image_features`: alone, its pictures are compared with the texts that were given last."""
        with self.session.run():
            output, reservoir = original(*args, **kwargs), self.reservoir
            if not self.within and reservoir is not None:
                if reservoir.texts is None:
                    self.session.report.warnings.append(
                        "condensed without a reservoir: give the texts to get_text_features first"
                    )
                else:
                    self._learn(reservoir, self._compared(reservoir.texts))
            if not self.within:
                self.condensing.begin(None)
        return output

    def _compare(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces `forward` of the whole model: its logits are corrected, and the loss is that of the others."""
        whole = kwargs.pop("return_dict", None)
        with self.session.run():
            self.within = True
            try:
                output, reservoir = original(*args, return_dict=True, **kwargs), self.reservoir
                if reservoir is not None:
                    self._learn(reservoir, output.logits_per_image)
                    self._correct(reservoir, output)
            finally:
                self.within = False
                self.condensing.begin(None)
        return output if (self.adapter.target.config.return_dict if whole is None else whole) else output.to_tuple()

    @torch.no_grad()
    def _compared(self, texts: torch.Tensor) -> torch.Tensor:
        """The logits of the pictures of the last pass with texts `[C, P]`."""
        target: Any = self.adapter.target
        unit = normalize(target.visual_projection(self.pooled), dim=-1)
        return target.logit_scale.exp() * unit @ texts.to(unit).T

    def _tokens(self) -> torch.Tensor:
        return torch.stack(self.condensing.seen, 1)

    def _learn(self, reservoir: Reservoir, logits: torch.Tensor) -> None:
        reservoir.add(self._tokens(), logits)
        report = self.session.report
        report.peak_extra_bytes = reservoir.nbytes()
        report.details["reservoir"] = len(reservoir)

    def _correct(self, reservoir: Reservoir, output: Any) -> None:
        """Add the votes of the reservoir to the logits of an output."""
        plain = output.logits_per_image
        votes = reservoir.votes(self._tokens(), self.depths, self.method.sharpness)
        output.logits_per_image = plain + (self.method.weight * votes).to(plain)
        output.logits_per_text = output.logits_per_image.T
        changed = output.logits_per_image.argmax(-1) != plain.argmax(-1)
        self.session.report.details["corrected"] = int(changed.sum())

    def _report(self, pictures: int) -> None:
        """Count the tokens of a pass."""
        report, patches = self.session.report, self.condensing.patches
        report.plain_forwards += 1
        if not patches or patches[-1] == patches[0]:
            report.forwards += 1
            return
        mean = sum(patches) / len(patches)
        report.engaged = True
        report.forwards += (mean + 1) / (patches[0] + 1)
        report.visual_tokens += round(mean * pictures)
        report.plain_visual_tokens += patches[0] * pictures
