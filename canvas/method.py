"""Base of the methods for canvases, and of the rules that say which tokens of a block are committed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mmaccel.method import Method
from mmaccel.session import Session

if TYPE_CHECKING:
    from .caches.kept_prefix import KeptPrefix
    from .caches.kept_window import KeptWindow


@dataclass
class Block:
    """The block of a canvas that is being filled, before a step commits tokens.

    Attributes
    ----------
    logits : float32 `[B, L, V]`
        Of the model, or of a rule that adjusted them.
    tokens : int64 `[B, L]`
        What would be committed at each position; at temperature 0 the likeliest.
    chances : float32 `[B, L]`
        Their probabilities.
    masked : bool `[B, L]`
        Where nothing is committed yet.
    step, steps
        How many steps the block has had, and how many its schedule has.
    memory
        What a rule keeps from step to step of one block.
    grid
        Rows and columns of a picture, whose positions follow row by row; None for a text.
    drawn
        The chances `[..., V]` by which tokens are drawn from logits, with the temperature and the filters of the call;
        None where the likeliest is taken.
    generator
        Of the call.
    read
        Logits `[B, L, V]` of each token by those before it alone, with these tokens at the masked positions; a pass.
        None where the model cannot read so.
    """

    logits: torch.Tensor
    tokens: torch.Tensor
    chances: torch.Tensor
    masked: torch.Tensor
    step: int
    steps: int
    memory: dict[str, Any] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    drawn: Callable[[torch.Tensor], torch.Tensor] | None = None
    generator: torch.Generator | None = None
    read: Callable[[torch.Tensor], torch.Tensor] | None = None

    @property
    def leftmost(self) -> torch.Tensor:
        """The first masked tokens of each row that stand together, `[B, L]`."""
        begun = self.masked.cumsum(1) > 0
        return begun & ((begun & ~self.masked).cumsum(1) == 0)

    @property
    def mean_gap(self) -> torch.Tensor:
        """How far the best logit stands above the second on the mean of the masked positions, `[B]`."""
        best = self.logits.topk(2, -1).values
        gaps = (best[..., 0] - best[..., 1]).masked_fill(~self.masked, 0)
        return gaps.sum(1) / self.masked.sum(1).clamp(min=1)

    def surest(self, counts: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The first `counts [B]` masked positions by falling `order [B, L]`, as a mask."""
        falling = torch.argsort(order.masked_fill(~self.masked, -torch.inf), dim=1, descending=True, stable=True)
        return self.masked & (falling.argsort(1) < counts[:, None])


# Times logits: as unsure as can be, of the same tokens. A power of two rounds no two together in bfloat16 and float32.
UNSURE = 2.0**-13
SAMPLED = "ran plainly: it needs greedy decoding, and temperature is above 0"
MASKS, NOISE = "block diffusion", "uniform block diffusion"  # families whose canvases begin as masks, or at random
PICTURES = "masked pictures"  # the family whose canvases are the codes of a picture
# For the documentation of methods that work on pictures alone.
PICTURE_EXAMPLE = """import mmaccel
import torch
from mmaccel import canvas, zoo

pipe = zoo.load("tiny-amused")
with mmaccel.accelerate(pipe, {method}) as fast:
    picture = fast("big red heart on yellow", generator=torch.Generator().manual_seed(0)).images[0]
    print(fast.report)"""


class CanvasMethod(Method[Session]):
    """A method for pipelines that fill canvases."""

    families: ClassVar[frozenset[str] | None] = frozenset({MASKS})

    @property
    def is_neutral(self) -> bool:
        """Whether these settings change nothing."""
        return bool(self.neutral) and all(getattr(self, name) == value for name, value in self.neutral.items())

    def keeper(self, grows: bool, mask: Callable[[], int | None]) -> KeptPrefix | KeptWindow | None:
        """What keeps keys and values for it; None where it is no cache.

        `grows` says whether tokens before a block do not see it, and `mask` gives the token of what is not filled yet.
        """
        return None

    def attach(self, session: Session, stack: ExitStack) -> None:
        session.adapter.attach(self, session, stack)

    def prepare(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        session.adapter.prepare(args, kwargs)


class CommitRule(CanvasMethod):
    """Says which tokens are committed, beside those that the pipeline's own threshold and schedule commit.

    All are lossy: tokens that are committed together do not know of each other.

    Class attributes
    ----------------
    replaces
        Whether the pipeline commits nothing beside it.
    """

    role: ClassVar[str] = "commit rule"
    replaces: ClassVar[bool] = False

    def adjust(self, logits: torch.Tensor, masked: torch.Tensor, memory: dict[str, Any]) -> torch.Tensor:
        """Logits `[B, L, V]` that the pipeline and the rule are to decide by; `memory` begins empty in each block."""
        return logits

    def takes(self, steps: int) -> int:
        """The most steps until a block is full, where the pipeline's schedule has `steps`."""
        return steps

    @abstractmethod
    def choose(self, block: Block) -> torch.Tensor:
        """Positions `[B, L]` to commit."""


def are_changed(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a method made others of logits: where it left them it returned them, and they are not read again."""
    return after is not before and not torch.equal(after, before)
