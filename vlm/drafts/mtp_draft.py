"""MTPDraft: the layer of multi-token prediction in a checkpoint guesses, where that is worth its time."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, ClassVar

from mmaccel.decoding.drafters.heads.mtp_head import MTPHead
from mmaccel.decoding.drafters.heads.mtp_weights import find_layers, load_mtp
from mmaccel.errors import WeightsError
from mmaccel.method import Advice
from mmaccel.registry import register

from .head_draft import HeadDraft, require_readable


@register("vlm")
@dataclass(frozen=True)
class MTPDraft(HeadDraft):
    """Draft with the layer of multi-token prediction of the model's own checkpoint (DeepSeek-V3, 2024), beside repeats.

    Many models were trained with a further layer that predicts the next token but one, and are published with it:
    Qwen3.5 of all sizes, Qwen3-Next, GLM-4.5 to 4.7, GLM-OCR, Mellum; DeepSeek-V3 in bfloat16. transformers leaves it
    in the files; here it is read from where the model was loaded, and nothing else need be downloaded. Its guesses
    stand in one tree with those of :class:`FusedDraft`, token by token as far as its steps are worth their measured
    time at their measured acceptance; of several such layers the first is asked each time. Greedy or sampled, one text
    or a batch, with pictures and videos too; where a text is sampled, guesses are drawn with the random numbers that
    the model will draw with (Gumbel coupling, Daliri et al., 2024). Exact in float32: the tokens of the model itself,
    and with sampling those of the same random state, in a batch their distribution. With beams, an assistant or another
    kind of cache the model's own loop runs, and the report says so; where the checkpoint has no such layer, the guesses
    of :class:`FusedDraft` serve alone, and the report says that too.

    Other settings are those of :class:`FusedDraft`.

    Parameters
    ----------
    checkpoint
        Folder or Hub repository whose layer drafts, in safetensors and not quantized. Default none, for where the model
        was loaded from; name it for a quantized model, and give that which it was made from, and for one that was
        loaded with `revision=`, and give its folder.
    always
        Verify all guesses, up to `block`, and ask the layer for each, whether or not that is worth its cost; default
        False, for which passes are timed.

    Raises
    ------
    SettingError
        If a setting is out of range.
    UnsupportedTargetError
        If the model's embedding or output is off-loaded or quantized, or the layer is of an unknown kind, as those of
        DeepSeek-V3.2 and GLM-5, which choose what they attend to, and of Ernie 4.5 and MiMo.
    WeightsError
        If `checkpoint` has no such layer, if files cannot be had, or if the layer is quantized or of another model.

    Examples
    --------
    >>> with mmaccel.accelerate(model, MTPDraft()) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**inputs, max_new_tokens=200)
    ...     print(fast.report)
    """

    checkpoint: str | PathLike[str] = ""

    paper: ClassVar[str] = "DeepSeek-V3 Technical Report by DeepSeek-AI, 2024"
    advice: ClassVar[Advice] = Advice(
        "Models that are published with such a layer, as Qwen3.5 and GLM are; free text too, of which nothing repeats.",
        "Nothing in quality; the memory of one more layer and its cache, and up to 35 MB for what is learned.",
    )

    without: ClassVar[str] = (
        "no layer of multi-token prediction guesses, as there is none where the model was loaded from: if its"
        ' repository has one, name that, as in MTPDraft(checkpoint="Qwen/Qwen3.5-4B")'
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.checkpoint, str), "checkpoint", "a folder or a repository of the Hub")

    @property
    def uses_files(self) -> bool:
        """Whether a checkpoint is named."""
        return bool(self.checkpoint)

    def load(self, model: Any) -> MTPHead | None:
        given = fspath(self.checkpoint)
        path = given or model.name_or_path
        names = find_layers(path, model) if path else {}
        if names:
            require_readable(model)
            return load_mtp(path, names, model)
        if given:
            raise WeightsError(f"checkpoint={given!r} has no layer of multi-token prediction: use vlm.FusedDraft()")
        return None
