"""What drafts the texts of a batch, each row by a drafter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Protocol

from .drafters.grown_draft import GrownDrafter
from .drafters.steps import Waiting, together
from .generated_text import Drafts, GeneratedText, Verdicts
from .loop import Drafter
from .matching import Draft, Verdict

# Tokens that a text may be ahead of the slowest one, and still get drafts where they are read in step, or else say how
# large drafts are.
AHEAD = 8


class TextDrafter(Drafter[Draft, Verdict], Protocol):
    """A drafter that is told the text as it grows."""

    def begin(self, tokens: Sequence[int] = ()) -> None:
        """A text begins with these tokens."""


class RowDrafters:
    """A drafter for each row of a batch.

    Parameters
    ----------
    drafters, texts
        One each per row; nothing is drafted for a text that has ended.
    branches
        Whether trees can be verified; of a tree its first path is taken otherwise.
    in_step
        Whether the texts are read in step, so that the slowest ones set the pace.
    """

    def __init__(
        self, drafters: Sequence[TextDrafter], texts: Sequence[GeneratedText], branches: bool, in_step: bool = False
    ) -> None:
        self.drafters, self.texts, self.branches, self.in_step = drafters, texts, branches, in_step

    def propose(self, most: int) -> Drafts:
        """A draft of at most `most` tokens for each text that goes on."""
        rows = together([self._drafting(row, most) for row in range(len(self.texts))])
        known = [0 if text.finished else text.unread + 1 for text in self.texts]
        return Drafts(tuple(self._paced(rows, known) if self.in_step else self._agreed(rows)), tuple(known))

    def _drafting(self, row: int, most: int) -> Waiting[Draft]:
        text, drafter = self.texts[row], self.drafters[row]
        if text.finished or text.ahead > AHEAD:
            return Draft(())
        most = min(most, text.room - 1)
        draft = (yield from drafter.drafting(most)) if isinstance(drafter, GrownDrafter) else drafter.propose(most)
        return draft if self.branches else draft.chain()

    def _agreed(self, rows: Sequence[Draft]) -> list[Draft]:
        """Drafts no larger than most of the slowest texts want: a batch ends with these, and pays for the largest."""
        written = {row: text.ids.shape[1] for row, text in enumerate(self.texts) if not text.finished}
        slowest = [rows[row].size for row, count in written.items() if count <= min(written.values()) + AHEAD]
        return [draft.first(median_low(slowest)) for draft in rows]

    def _paced(self, rows: Sequence[Draft], known: Sequence[int]) -> list[Draft]:
        """Drafts that go no farther than the slowest texts may be left behind; none, if one of these has none."""
        slowest = [
            draft.size for draft, text in zip(rows, self.texts, strict=True) if not (text.finished or text.ahead)
        ]
        end = min(count for count in known if count) + min(slowest) + AHEAD if all(slowest) else 0
        return [draft.first(max(0, end - count)) for draft, count in zip(rows, known, strict=True)]

    def observe(self, verdicts: Verdicts) -> None:
        """Show each drafter what became of its draft."""
        for drafter, verdict in zip(self.drafters, verdicts, strict=True):
            if verdict is not None:
                drafter.observe(verdict)
