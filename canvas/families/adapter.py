"""Base of the adapters of canvases: one decoder follows the pipeline for all methods of a session."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Generic, TypeVar

from mmaccel.adapter import Adapter
from mmaccel.session import Session

from ..method import CanvasMethod
from .following import Follower

D = TypeVar("D", bound=Follower)


class CanvasAdapter(Adapter, Generic[D]):
    """A pipeline that fills canvases.

    Attributes
    ----------
    follows
        The class of the decoder.
    decoder
        What follows it while methods are attached.
    """

    modality = "canvas"
    call_is_run = True
    follows: type[D]

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.decoder: D | None = None

    def parts(self) -> list[Any]:
        return [self.target, getattr(self.target, self.follows.part), self.target.scheduler]

    def decoder_of(self, session: Session, methods: list[CanvasMethod]) -> D:
        """What follows the pipeline for these methods, none of which is neutral."""
        return self.follows(session, methods)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a run with these arguments."""
        if self.decoder is not None:
            self.decoder.refuse_other_parts()

    def attach(self, method: CanvasMethod, session: Session, stack: ExitStack) -> None:
        """Add a method; the first one installs what follows the pipeline's passes and steps."""
        if self.decoder is None:
            chosen = [m for m in session.plan.methods if isinstance(m, CanvasMethod) and not m.is_neutral]
            self.decoder = self.decoder_of(session, chosen)
            stack.callback(setattr, self, "decoder", None)
            self.decoder.attach(stack)
