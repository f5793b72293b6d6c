"""Base of the methods that draft text and let the model verify it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.errors import SettingError
from mmaccel.method import Method, is_count
from mmaccel.report import Report
from mmaccel.session import Session

from ..custom_generate import CustomGenerate
from ..generation import Call, Holder, verify_drafts
from ..loop import FixedWidth, Width
from ..row_drafters import TextDrafter
from .placeholders import placeholders


@dataclass(frozen=True)
class DraftMethod(Method[Session]):
    """A session's `generate` with drafts that the model verifies; exact.

    Subclasses say in :meth:`drafter` what drafts; what it learns from one text for the next it keeps in
    `session.memory`.

    Parameters
    ----------
    block
        Most tokens of a draft; default 16. 0 turns drafts off.

    Raises
    ------
    SettingError
        If a setting is out of range.
    """

    block: int = 16

    lossless: ClassVar[bool] = True
    role: ClassVar[str] = "text drafts"
    excludes: ClassVar[frozenset[str]] = frozenset({"decoding cache"})  # from which nothing can be taken back
    neutral: ClassVar[dict[str, Any]] = {"block": 0}
    branches: ClassVar[bool] = False  # whether drafts are trees
    likely: ClassVar[int] = 0  # how many of the likeliest tokens after each node the drafter is told

    def __post_init__(self) -> None:
        self._require(is_count(self.block, 0, 256), "block", "between 0 and 256 tokens")

    @property
    def silent(self) -> str:
        """Why a text has no draft at all."""
        return "there was nothing to guess from"

    def attach(self, session: Session, stack: ExitStack) -> None:
        self.require_fit(session.target)
        verify_drafts(session, stack, self)

    def custom_generate(self) -> CustomGenerate:
        """The drafts without a session, for `generate(..., custom_generate=...)` of transformers or another engine."""
        return CustomGenerate(self)

    def require_fit(self, model: Any) -> None:
        """Refuse a model that it cannot draft for."""

    def take(self, model: Any, kwargs: dict[str, Any]) -> Any:
        """Take what is meant for the drafts out of the arguments of a call of `generate`."""
        if kwargs.get("prediction") is not None:
            raise SettingError(f"{type(self).__name__} takes no prediction; vlm.TextDraft does")

    def tell(self, report: Report, given: Any, memory: dict[str, Any]) -> None:
        """Say in the report of a call what else there is to say of its drafts, and of what was taken for them."""

    def learned(self, memory: dict[str, Any]) -> int:
        """Bytes of what a session has learned, at most."""
        return 0

    def layers(self, holder: Holder, given: Any) -> tuple[int, ...]:
        """Layers of the model whose inputs the drafts are made from, with what a call gave for them."""
        return ()

    def drafters(self, call: Call) -> Sequence[TextDrafter]:
        """What drafts the next text of each row of a batch."""
        return [self.drafter(call, row) for row in range(call.rows)]

    def drafter(self, call: Call, row: int) -> TextDrafter:
        """What drafts the next text of a row."""
        raise TypeError(f"{type(self).__name__} does not say what drafts")  # pragma: no cover

    def width(self, call: Call) -> Width:
        """How many tokens a pass over a batch verifies at most, the last committed one included."""
        return FixedWidth(self.block + 1)

    def _forbidden(self, session: Holder) -> frozenset[int]:
        """Tokens of the model that stand for something else than text."""
        return placeholders(session.target.config)
