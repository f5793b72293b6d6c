"""What methods share that draft with a head beside other guesses."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.method import Held
from mmaccel.session import Session

from ...generation import Call
from ..assistant import AssistantCost
from ..grown_method import GrownMethod
from ..sources import Source
from .draft_head import DraftHead
from .guesses import HeadGuesses, HeadSource
from .steps import HeadSteps


@dataclass(frozen=True)
class HeadMethod(GrownMethod):
    """A session's `generate` with the guesses of a head that reads hidden states of the model.

    Subclasses say in :meth:`load` which head that is, and whether there is one.
    """

    guesses: ClassVar[type[HeadSource]] = HeadGuesses
    steps: ClassVar[type[HeadSteps]] = HeadSteps

    @property
    def has_head(self) -> bool:
        """Whether a head guesses too."""
        return True

    def load(self, model: Any) -> DraftHead:
        """The head for a model."""
        raise TypeError(f"{type(self).__name__} does not say which head it drafts with")  # pragma: no cover

    def held(self) -> tuple[Held, ...]:
        """What the other guesses need, and the head."""
        head = Held("the head, and for each row of a batch the keys and values of its layers")
        return (*super().held(), *([head] if self.has_head else []))

    def learned(self, memory: dict[str, Any]) -> int:
        """Bytes of what the other guesses are made from, and of the head."""
        head: DraftHead | None = memory.get(f"{self.name}, head")
        return super().learned(memory) + (0 if head is None else head.bytes)

    def require_fit(self, model: Any) -> None:
        """Refuse a model whose hidden states, embedding or output cannot be read."""
        super().require_fit(model)
        if not self.has_head:
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

    def attach(self, session: Session, stack: ExitStack) -> None:
        super().attach(session, stack)
        if self.has_head and self.block:
            self._head(session)

    def _head(self, holder: Any) -> DraftHead:
        """The head, loaded once for the session, where the model is."""
        found: DraftHead | None = holder.memory.get(f"{self.name}, head")
        if found is None:
            found = holder.memory[f"{self.name}, head"] = self.load(holder.target)
        return found.beside(holder.target)

    def layers(self, holder: Any) -> tuple[int, ...]:
        """Layers of the model whose inputs the head reads."""
        reads: tuple[int, ...] = self._head(holder).config.layers_read if self.has_head else ()
        return reads

    def sources(self, call: Call, row: int) -> list[Source]:
        """The other guesses, and the head."""
        found = super().sources(call, row)
        if not self.has_head:
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
            steps = call.shared["head"] = self.steps(head, cost, call.rows, forbidden, call.dice)
        return [*found, self.guesses(steps, told, branches=call.branches, row=row)]
