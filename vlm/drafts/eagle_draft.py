"""EagleDraft: a head that reads the model's hidden states guesses, where that is worth its time."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any, ClassVar

from mmaccel.decoding.drafters.assistant import AssistantCost
from mmaccel.decoding.drafters.eagle_guesses import EagleGuesses
from mmaccel.decoding.drafters.eagle_head import EagleHead
from mmaccel.decoding.drafters.eagle_steps import HeadSteps
from mmaccel.decoding.drafters.eagle_weights import configuration, load_head
from mmaccel.decoding.drafters.sources import Source
from mmaccel.decoding.generation import Call
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.method import Advice, Held
from mmaccel.registry import register
from mmaccel.report import Report
from mmaccel.session import Session

from .fused_draft import FusedDraft


@register("vlm")
@dataclass(frozen=True)
class EagleDraft(FusedDraft):
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
        Folder or Hub repository with the `config.json` and the `model.safetensors` of the head, as EAGLE, SpecForge,
        AngelSlim and speculators write them. Default none, for the guesses of :class:`FusedDraft` alone.
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
        If the head cannot be had, or is not in safetensors.

    Examples
    --------
    >>> with mmaccel.accelerate(model, EagleDraft(head="AngelSlim/Qwen3-4B_eagle3")) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**inputs, max_new_tokens=200)
    ...     print(fast.report)
    """

    head: str | PathLike[str] = ""

    paper: ClassVar[str] = "EAGLE-3: Scaling up Inference Acceleration via Training-Time Test by Li et al., 2025"
    advice: ClassVar[Advice] = Advice(
        "Models for which a head is published or trained; free text too, of which nothing repeats.",
        "Nothing in quality; the memory of the head and its cache, and up to 35 MB for what is learned.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.head, str), "head", "a folder or a repository of the Hub")

    @property
    def uses_files(self) -> bool:
        """Whether there is a head."""
        return bool(self.head)

    def held(self) -> tuple[Held, ...]:
        """What :class:`FusedDraft` learns, and the head."""
        head = Held("the head, and for each row of a batch the keys and values of its layer")
        return (*super().held(), *([head] if self.head else []))

    def learned(self, memory: dict[str, Any]) -> int:
        """Bytes of what :class:`FusedDraft` learned, and of the head."""
        head: EagleHead | None = memory.get(f"{self.name}, head")
        return super().learned(memory) + (0 if head is None else head.bytes)

    def require_fit(self, model: Any) -> None:
        """Refuse a model that the head was not trained for."""
        super().require_fit(model)
        if not self.head:
            return
        if model.config.is_encoder_decoder or not hasattr(model.get_decoder(), "layers"):
            raise UnsupportedTargetError(
                f"{type(model).__name__} is no decoder whose layers a head can read: use vlm.FusedDraft()"
            )
        for matrix, kept in ((model.get_input_embeddings(), "embedding"), (model.get_output_embeddings(), "lm_head")):
            if matrix.weight.device.type == "meta":
                raise UnsupportedTargetError(
                    f"{type(model).__name__} has its {kept} off-loaded, which a head reads: keep embedding and lm_head"
                    " on a device in its device_map"
                )
        configuration(fspath(self.head), model)

    def attach(self, session: Session, stack: ExitStack) -> None:
        super().attach(session, stack)
        if self.head and self.block:
            self._head(session)

    def _head(self, holder: Any) -> EagleHead:
        """The head, loaded once for the session, where the model is."""
        found: EagleHead | None = holder.memory.get(f"{self.name}, head")
        if found is None:
            found = holder.memory[f"{self.name}, head"] = load_head(fspath(self.head), holder.target)
        return found.beside(holder.target)

    def layers(self, holder: Any) -> tuple[int, ...]:
        """Layers of the model whose inputs the head reads."""
        reads: tuple[int, ...] = self._head(holder).config.layers_read if self.head else ()
        return reads

    def sources(self, call: Call, row: int) -> list[Source]:
        """The guesses of :class:`FusedDraft`, and the head."""
        found = super().sources(call, row)
        if not self.head:
            return found
        if call.texts is None or call.texts.hidden is None:
            raise SettingError(
                f"{type(self).__name__} reads hidden states of the model, which only the loop of `generate` tells:"
                " use vlm.FusedDraft() for an engine of your own"
            )
        new = AssistantCost(self.width(call), call.rows)
        cost: AssistantCost = self._kept(call, f"cost of a head of {call.rows} rows", new)
        told = partial(call.texts.hidden.take, row)
        steps = call.shared.get("head")
        if steps is None:
            head, forbidden = self._head(call.session), self._forbidden(call.session)
            steps = call.shared["head"] = HeadSteps(head, cost, call.rows, forbidden, call.dice)
        return [*found, EagleGuesses(steps, told, branches=call.branches, row=row)]

    def tell(self, report: Report, given: Any) -> None:
        """Say where no head was named."""
        super().tell(report, given)
        if not self.head:
            report.warnings.append('no head guesses: name one, as in EagleDraft(head="AngelSlim/Qwen3-4B_eagle3")')
