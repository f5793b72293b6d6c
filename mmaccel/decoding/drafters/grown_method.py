"""Base of the methods that draft as much as is worth its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..generation import Holder
from .acceptance import Acceptance
from .assistant import EXPECTED as ASSISTANT
from .draft_method import DraftMethod
from .given_text import EXPECTED as GIVEN
from .grown_draft import GrownDrafter
from .pass_cost import PassCost
from .sources import EXPECTED, Source, Successors


@dataclass(frozen=True)
class GrownMethod(DraftMethod):
    """A session's `generate` with drafts that are as large as is worth their cost; exact.

    Subclasses say in :meth:`sources` where guesses come from.

    Parameters
    ----------
    always
        Draft whatever can be guessed, up to `block` nodes, whether or not that is worth its cost; default False.
    """

    always: bool = False

    engaging: ClassVar[dict[str, Any]] = {"always": True}  # what a pass costs is no part of the contract

    silent: ClassVar[str] = "no guess was worth what a wider pass costs"
    branches: ClassVar[bool] = True
    likely: ClassVar[int] = 8  # as in the paper of Token Recycling

    def drafters(self, session: Holder, rows: int, branches: bool) -> list[GrownDrafter]:
        """A drafter for each row; how often guesses are right, and what they cost, is learned from all texts."""
        acceptance: Acceptance = self._kept(session, "acceptance", Acceptance({**EXPECTED, **GIVEN, **ASSISTANT}))
        cost = self.width(session, rows)
        return [GrownDrafter(self.sources(session, row), acceptance, cost, branches) for row in range(rows)]

    def width(self, session: Holder, rows: int) -> PassCost:
        """What passes over so many rows cost."""
        found: PassCost = self._kept(session, f"cost of {rows} rows", PassCost(self.block + 1, self.always))
        return found

    def sources(self, session: Holder, row: int) -> list[Source]:
        """Where the guesses for a row come from, as far as kept for the session."""
        raise TypeError(f"{type(self).__name__} does not say where guesses come from")  # pragma: no cover

    def successors(self, session: Holder, longest: int = 1) -> Successors:
        """The successors that the session knows, after at most so many equal tokens."""
        return Successors(self._kept(session, "successors", {}), self._forbidden(session), longest)

    def _kept(self, session: Holder, what: str, new: Any) -> Any:
        return session.memory.setdefault(f"{self.name}, {what}", new)
