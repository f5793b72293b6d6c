"""Base of the methods that draft as much as is worth its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel import private
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Held

from ..generation import Call
from .acceptance import Acceptance
from .assistant import EXPECTED as ASSISTANT
from .draft_method import DraftMethod
from .given_text import EXPECTED as GIVEN
from .grown_draft import GrownDrafter
from .heads.guesses import EXPECTED as HEADED
from .pass_cost import PassCost
from .sources import EXPECTED, REMEMBER, Source, Successors, successors_bytes


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

    branches: ClassVar[bool] = True
    likely: ClassVar[int] = 8  # as in the paper of Token Recycling
    equal_tokens: ClassVar[int] = 1  # most after which successors are kept

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.always, bool), "always", "True or False")

    @property
    def silent(self) -> str:
        return super().silent if self.always else "no guess was worth what a wider pass costs"

    def require_fit(self, model: Any) -> None:
        """Refuse a model that is split over processes, unless drafts are always made."""
        if not self.always and private.is_split(model):
            raise UnsupportedTargetError(
                f"{type(model).__name__} is split over processes, each of which would measure another"
                f" cost of a pass and draft otherwise: say {self.name}(always=True)"
            )

    def held(self) -> tuple[Held, ...]:
        """The successors, shared by all rows."""
        bound = successors_bytes(self.likely, self.equal_tokens)
        return (Held(f"the likeliest {self.likely} tokens after {REMEMBER} contexts, the newest", bound),)

    def learned(self, memory: dict[str, Any]) -> int:
        """Bytes of the successors."""
        known = memory.get(f"{self.name}, successors", {})
        return successors_bytes(self.likely, self.equal_tokens, len(known))

    def drafters(self, call: Call) -> list[GrownDrafter]:
        """A drafter for each row; how often guesses are right, and what they cost, is learned from all texts."""
        acceptance: Acceptance = self._kept(
            call, "acceptance", Acceptance({**EXPECTED, **GIVEN, **ASSISTANT, **HEADED})
        )
        cost = self.width(call)
        cost.begin()
        return [
            GrownDrafter(self.sources(call, row), acceptance, cost, call.branches, call.reads_again)
            for row in range(call.rows)
        ]

    def width(self, call: Call) -> PassCost:
        """What passes over so many rows cost."""
        return self._kept(call, f"cost of {call.rows} rows", PassCost(self.block + 1, self.always))

    def sources(self, call: Call, row: int) -> list[Source]:
        """Where the guesses for a row come from, as far as kept for the session."""
        raise TypeError(f"{type(self).__name__} does not say where guesses come from")  # pragma: no cover

    def successors(self, call: Call) -> Successors:
        """The successors that the session knows."""
        known, forbidden = self._kept(call, "successors", {}), self._forbidden(call.session)
        return Successors(known, forbidden, self.equal_tokens, dice=call.dice)

    def _kept(self, call: Call, what: str, new: Any) -> Any:
        return call.session.memory.setdefault(f"{self.name}, {what}", new)
