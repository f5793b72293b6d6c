"""Base of the methods that draft with a head."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from mmaccel.decoding.drafters.assistant import AssistantCost
from mmaccel.decoding.drafters.heads.draft_head import QUANTIZED, DraftHead
from mmaccel.decoding.drafters.heads.guesses import HeadGuesses, HeadSource
from mmaccel.decoding.drafters.heads.steps import HeadSteps
from mmaccel.decoding.drafters.sources import Source
from mmaccel.decoding.generation import Call
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.method import Held
from mmaccel.report import Report
from mmaccel.session import Session

from .fused_draft import FusedDraft

# How many states each token has between the layers, as configurations call it: one, but with AltUp (Gemma 3n) and
# hyper-connections (DeepSeek-V4, Qwen4).
STREAMS = ("altup_num_inputs", "hc_mult", "hc_count")


@dataclass(frozen=True)
class HeadDraft(FusedDraft):
    """:class:`FusedDraft` with the guesses of a head that reads hidden states of the model.

    Subclasses say in :meth:`load` which head that is, in `without` what a report says where there is none, and in
    `steps` and `guesses` how it is asked.
    """

    without: ClassVar[str] = ""
    steps: ClassVar[type[HeadSteps]] = HeadSteps
    guesses: ClassVar[type[HeadSource]] = HeadGuesses

    @property
    def has_head(self) -> bool:
        """Whether a head is asked for at all."""
        return True

    def load(self, model: Any) -> DraftHead | None:
        """The head for a model; None where there is none."""
        raise TypeError(f"{type(self).__name__} does not say which head it drafts with")  # pragma: no cover

    def held(self) -> tuple[Held, ...]:
        """What :class:`FusedDraft` learns, and the head."""
        return (*super().held(), Held("the head, and for each row of a batch the keys and values of its layers"))

    def learned(self, memory: dict[str, Any]) -> int:
        """Bytes of what :class:`FusedDraft` learned, and of the head."""
        head: DraftHead | None = memory.get(f"{self.name}, head")
        return super().learned(memory) + (0 if head is None else head.bytes)

    def attach(self, session: Session, stack: ExitStack) -> None:
        super().attach(session, stack)
        if self.block:
            self._head(session)

    def _head(self, holder: Any) -> DraftHead | None:
        """The head, loaded once for the session, where the model is."""
        key = f"{self.name}, head"
        if key not in holder.memory:
            holder.memory[key] = self.load(holder.target)
        found: DraftHead | None = holder.memory[key]
        return None if found is None else found.beside(holder.target)

    def layers(self, holder: Any, given: Any) -> tuple[int, ...]:
        """Layers of the model whose inputs the head reads."""
        head = self._head(holder)
        return () if head is None else head.config.layers_read

    def sources(self, call: Call, row: int) -> list[Source]:
        """The guesses of :class:`FusedDraft`, and the head."""
        if not self.has_head:
            return super().sources(call, row)
        if call.texts is None:
            raise SettingError(
                f"{type(self).__name__} reads hidden states of the model, which only the loop of `generate` tells:"
                " use vlm.FusedDraft() for an engine of your own"
            )
        found, head, hidden = super().sources(call, row), self._head(call.session), call.texts.hidden
        if head is None or hidden is None:
            return found
        new = AssistantCost(self.width(call), call.rows)
        cost: AssistantCost = self._kept(call, f"cost of a head of {call.rows} rows", new)
        told = partial(hidden.take, row)
        steps = call.shared.get("head")
        if steps is None:
            forbidden = self._forbidden(call.session)
            steps = call.shared["head"] = self.steps(head, cost, call.rows, forbidden, call.dice)
        return [*found, self.guesses(steps, told, branches=call.branches, row=row)]

    def tell(self, report: Report, given: Any, memory: dict[str, Any]) -> None:
        """Say where there is no head."""
        super().tell(report, given, memory)
        if memory.get(f"{self.name}, head", self) is None:  # not where nobody looked for one
            report.warnings.append(self.without)


def require_readable(model: Any) -> None:
    """Refuse a model whose hidden states, embedding or output a head cannot read."""
    if model.config.is_encoder_decoder or not hasattr(model.get_decoder(), "layers"):
        raise UnsupportedTargetError(
            f"{type(model).__name__} is no decoder whose layers a head can read: use vlm.FusedDraft()"
        )
    config = model.config.get_text_config(decoder=True)
    count = max(getattr(config, name, None) or 1 for name in STREAMS)
    if count > 1:
        raise UnsupportedTargetError(
            f"{type(model).__name__} has {count} hidden states for each token between its layers, and a head reads one:"
            " use vlm.FusedDraft()"
        )
    for matrix, kept in ((model.get_input_embeddings(), "embedding"), (model.get_output_embeddings(), "lm_head")):
        weight = getattr(matrix, "weight", None)
        if not isinstance(weight, Tensor):  # as layers of GPTQ, or of torch's dynamic int8
            raise UnsupportedTargetError(f"{type(model).__name__} {QUANTIZED.format(kept)}")
        if weight.device.type == "meta":
            raise UnsupportedTargetError(
                f"{type(model).__name__} has its {kept} off-loaded, which a head reads: keep embedding and lm_head"
                " on a device in its device_map"
            )
