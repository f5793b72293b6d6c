"""EagleDraft: a head that reads the model's hidden states guesses, where that is worth its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.decoding.drafters.heads.eagle_head import EagleHead
from mmaccel.decoding.drafters.heads.eagle_weights import configuration, load_head
from mmaccel.method import Advice
from mmaccel.registry import register

from .published_draft import PublishedDraft


@register("vlm")
@dataclass(frozen=True)
class EagleDraft(PublishedDraft):
    """Draft with an EAGLE-3 head that was trained for the model (Li et al., 2025), beside repeats and recycled tokens.

    Heads are published for many models, such as ``AngelSlim/Qwen3-4B_eagle3`` for Qwen3-4B; one is a layer of a few per
    cent of the model's size, which reads the hidden states of three of the model's layers and says what comes next. It
    guesses a tree, node by node, as far as its steps are worth their measured time at their measured acceptance; its
    guesses stand in one tree with those of :class:`FusedDraft`. Greedy or sampled, one text or a batch; where a text is
    sampled, guesses are drawn with the random numbers that the model will draw with (Gumbel coupling, Daliri et al.,
    2024). Exact in float32: the tokens of the model itself, and with sampling those of the same random state, in a
    batch their distribution. With beams, an assistant or another kind of cache the model's own loop runs, and the
    report says so.

    Other settings are those of :class:`FusedDraft`.

    Parameters
    ----------
    head
        Folder or Hub repository with the `config.json` and the `model.safetensors` of the head, in one file or several,
        as EAGLE, SpecForge, AngelSlim and speculators write them. Default none, for the guesses of :class:`FusedDraft`
        alone.
    always
        Verify all guesses, up to `block`, and ask the head for each, whether or not that is worth its cost; default
        False, for which passes are timed.

    Raises
    ------
    SettingError
        If a setting is out of range.
    UnsupportedTargetError
        If the head was trained for a model of other sizes, or the model has no such layers.
    WeightsError
        If the head cannot be had, is not in safetensors, or is quantized.

    Examples
    --------
    >>> with mmaccel.accelerate(model, EagleDraft(head="AngelSlim/Qwen3-4B_eagle3")) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**inputs, max_new_tokens=200)
    ...     print(fast.report)
    """

    paper: ClassVar[str] = "EAGLE-3: Scaling up Inference Acceleration via Training-Time Test by Li et al., 2025"
    advice: ClassVar[Advice] = Advice(
        "Models for which a head is published or trained; free text too, of which nothing repeats.",
        "Nothing in quality; the memory of the head and its cache, and up to 35 MB for what is learned.",
    )
    without: ClassVar[str] = 'no head guesses: name one, as in EagleDraft(head="AngelSlim/Qwen3-4B_eagle3")'

    def check(self, path: str, model: Any) -> None:
        configuration(path, model)

    def read(self, path: str, model: Any) -> EagleHead:
        return load_head(path, model)
