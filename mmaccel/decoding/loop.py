"""The draft-and-verify loop that image windows, recognisers and language models share.

Each pass asks a drafter for a draft, runs the target once over it, has the target judge the draft by what it says and
keep what was accepted, and shows the result to the drafter, the statistics and the budget.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from .stats import Stats

D = TypeVar("D", bound="Sized")
V = TypeVar("V")
D_in = TypeVar("D_in", contravariant=True)
D_out = TypeVar("D_out", covariant=True, bound="Sized")
V_in = TypeVar("V_in", contravariant=True)


class Sized(Protocol):
    """A draft, as far as the loop looks at it."""

    @property
    def size(self) -> int:
        """Draft tokens of each sequence."""

    @property
    def width(self) -> int:
        """Tokens of the pass that verifies it, those that are committed included."""

    @property
    def depth(self) -> int:
        """Most tokens that can be accepted; the size, unless the draft is a tree."""

    @property
    def nodes(self) -> int | None:
        """Draft tokens of all sequences together; None where each has as many."""


class Drafter(Protocol[D_out, V_in]):
    """What proposes tokens: a lookup, an older hypothesis, a window of guesses."""

    def propose(self, most: int) -> D_out:
        """A draft of at most `most` tokens; an empty one asks for a plain step."""

    def observe(self, verdict: V_in) -> None:
        """Learn what became of the draft."""


class Target(Protocol[D_in, V]):
    """The model that verifies, with its cache."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    @property
    def room(self) -> int:
        """Tokens that a sequence may still get; 0 ends the loop."""

    def forward(self, draft: D_in) -> torch.Tensor:
        """One pass over the last committed token and the draft: logits or probabilities after each of them."""

    def judge(self, output: torch.Tensor, draft: D_in) -> V:
        """Decide how much of a draft is kept, and what comes after it."""

    def commit(self, verdict: V) -> list[int]:
        """Keep what was accepted and forget the rest; draft tokens accepted in each sequence that had not ended.

        -1 for one that waited for others and got no token.
        """


class Width(Protocol):
    """How many tokens a pass verifies: :class:`FixedWidth` or :class:`mmaccel.decoding.Budget`."""

    def width(self) -> int:
        """Tokens of the next pass, the last committed one included."""

    def observe(self, width: int, emitted: list[int], seconds: float) -> None:
        """Learn how many tokens a pass of `width` committed in each sequence, and its seconds."""


class FixedWidth:
    """Always the same width.

    Examples
    --------
    >>> FixedWidth(8).width()
    8
    """

    def __init__(self, width: int) -> None:
        self._width = width

    def width(self) -> int:
        return self._width

    def observe(self, width: int, emitted: list[int], seconds: float) -> None:
        pass


def draft_and_verify(drafter: Drafter[D, V], target: Target[D, V], width: Width, stats: Stats) -> None:
    """Run passes until the target has no room left.

    Parameters
    ----------
    drafter, target
        The two parts of draft-and-verify decoding (Leviathan et al., 2023; Chen et al., 2023). The output keeps the
        target's distribution if the target judges by a rule that is exact for the way in which the drafter draws.
    width
        Says how many tokens a pass verifies. It is shown only lengths of committed runs and their seconds, never
        drafts that are still open, or its choices would be correlated with them and bias the distribution.
    stats
        Counts passes, drafts and committed tokens, and seconds of drafting, verifying and everything else.
    """
    now = clock(target.device)
    while (room := target.room) > 0:
        began, started = time.perf_counter(), now()
        draft = drafter.propose(min(width.width(), room) - 1)
        drafted = time.perf_counter()
        output = target.forward(draft)
        verified = time.perf_counter()
        verdict = target.judge(output, draft)
        accepted = target.commit(verdict)
        width.observe(draft.width, [count + 1 for count in accepted], now() - started)
        stats.observe(accepted, draft.size, depth=draft.depth, nodes=draft.nodes)
        drafter.observe(verdict)
        for name, seconds in (("draft", drafted - began), ("verify", verified - drafted)):
            stats.seconds[name] += seconds
        stats.seconds["other"] += time.perf_counter() - verified


def clock(device: torch.device) -> Callable[[], float]:
    """Seconds of this thread on a processor, so that what else the machine does is no cost of a pass.

    A thread that waits for an accelerator uses none, and Windows counts them in steps longer than a pass.
    """
    return time.thread_time if device.type == "cpu" and sys.platform != "win32" else time.perf_counter
