"""A draft that realigns after a word was changed, inserted or deleted."""

from __future__ import annotations

from collections.abc import Sequence

from mmaccel.decoding import Draft, Verdict
from mmaccel.decoding.drafters.given_text import nearest

# proposed after a mismatch, doubled as long as all are right; 8 tokens cost Moonshine tiny 1.3 times what 1 costs
FIRST_BLOCK = 8
PATIENCE = 2  # blocks without a single hit before only longer matches are believed


class RealignedDraft:
    """Propose the tokens of an older hypothesis, and realign after a mismatch.

    At first all tokens are proposed at once. After a mismatch the longest suffix of what was decoded is looked up in
    the draft (as in prompt lookup decoding, 2023), nearest to where the mismatch was. Where nothing matches, one
    token is taken to stand for another. A draft that keeps failing is no longer proposed, until at least two
    tokens in a row are found in it.

    Parameters
    ----------
    tokens
        The older hypothesis.

    Examples
    --------
    >>> draft = RealignedDraft([5, 6, 7, 8])
    >>> draft.propose(10).tokens
    (5, 6, 7, 8)
    >>> draft.observe(Verdict(path=(0,), tokens=(5, 9)))
    >>> draft.propose(10).tokens
    (7, 8)
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._decoded: list[int] = []
        self._next = 0  # of `tokens`, expected to come next
        self._size = len(self.tokens)
        self._misses = 0

    def propose(self, most: int) -> Draft:
        """Tokens to verify, at most `most`."""
        return Draft(tuple(self.tokens[self._next : self._next + min(self._size, most)]))

    def observe(self, verdict: Verdict) -> None:
        """Find the place in the draft that goes on from what is decoded by now."""
        self._decoded += verdict.tokens
        accepted = len(verdict.path)
        at = self._next + accepted  # what the newest token was compared with
        if self._size and self.tokens[at : at + 1] == [self._decoded[-1]]:
            self._next, self._size, self._misses = at + 1, 2 * self._size, 0
            return
        self._misses = 0 if accepted else self._misses + 1
        found = nearest(self.tokens, self._decoded, at + 1, shortest=1 if self._misses < PATIENCE else 2)
        believed = found is not None or self._misses < PATIENCE
        self._next, self._size = at + 1 if found is None else found, FIRST_BLOCK if believed else 0
