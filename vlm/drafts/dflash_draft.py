"""DFlashDraft: a draft model fills a whole block at once beside the model's hidden states, where that is worth it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.decoding.drafters.heads.dflash_guesses import BlockGuesses
from mmaccel.decoding.drafters.heads.dflash_head import DFlashHead
from mmaccel.decoding.drafters.heads.dflash_steps import BlockSteps
from mmaccel.decoding.drafters.heads.dflash_weights import configuration, load_dflash
from mmaccel.decoding.drafters.heads.guesses import HeadSource
from mmaccel.decoding.drafters.heads.steps import HeadSteps
from mmaccel.method import Advice
from mmaccel.registry import register

from .published_draft import PublishedDraft


@register("vlm")
@dataclass(frozen=True)
class DFlashDraft(PublishedDraft):
    """Draft whole blocks with a DFlash model that was trained for this one (Chen et al., 2026), beside what repeats.

    DFlash is published for many models, such as ``z-lab/Qwen3-4B-DFlash-b16`` for Qwen3-4B: some layers that read the
    hidden states of several of the model's, and say in one pass what is likely at each of the next places, 15 as a
    rule. Of these guesses a tree is drafted, together with those of :class:`FusedDraft`, as large as is worth its cost;
    a block is asked for where it is worth its measured time at its measured acceptance. Greedy or sampled, one text or
    a batch; where a text is sampled, guesses are drawn with the random numbers that the model will draw with (Gumbel
    coupling, Daliri et al., 2024). Exact in float32: the tokens of the model itself, and with sampling those of the
    same random state, in a batch their distribution. With beams, an assistant or another kind of cache the model's own
    loop runs, and the report says so. How fast published ones make their models was not measured here.

    Other settings are those of :class:`FusedDraft`.

    Parameters
    ----------
    head
        Folder or Hub repository with the `config.json` and the `model.safetensors` of the draft model, as z-lab,
        speculators and transformers write them. Default none, for the guesses of :class:`FusedDraft` alone.
    always
        Verify all guesses, up to `block`, and ask for a block in each pass, whether or not that is worth its cost;
        default False, for which passes are timed.

    Raises
    ------
    SettingError
        If a setting is out of range.
    UnsupportedTargetError
        If the draft model was trained for a model of other sizes or another vocabulary, or the model has no such
        layers.
    WeightsError
        If the draft model cannot be had, is not in safetensors, is quantized, or is one of DFlash 2, Domino or DSpark,
        which guess otherwise.

    Examples
    --------
    >>> with mmaccel.accelerate(model, DFlashDraft(head="z-lab/Qwen3-4B-DFlash-b16")) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**inputs, max_new_tokens=200)
    ...     print(fast.report)
    """

    paper: ClassVar[str] = "DFlash: Block Diffusion for Flash Speculative Decoding by Chen et al., 2026"
    advice: ClassVar[Advice] = Advice(
        "Models for which a draft model is published or trained; free text too, of which nothing repeats.",
        "Nothing in quality; the memory of the draft model and its cache, and up to 35 MB for what is learned.",
    )
    without: ClassVar[str] = 'no draft model guesses: name one, as in DFlashDraft(head="z-lab/Qwen3-4B-DFlash-b16")'
    guesses: ClassVar[type[HeadSource]] = BlockGuesses
    steps: ClassVar[type[HeadSteps]] = BlockSteps

    def check(self, path: str, model: Any) -> None:
        configuration(path, model)

    def read(self, path: str, model: Any) -> DFlashHead:
        return load_dflash(path, model)
