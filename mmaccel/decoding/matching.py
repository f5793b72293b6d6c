"""Drafts of text, and the rule that judges guesses made without chance: keep those that the model chooses itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

Likely = Sequence[tuple[int, float]]  # tokens and their probabilities
BLOCK = 128  # tokens of a vocabulary that are looked at together


@dataclass(frozen=True)
class Draft:
    """Guesses for the next tokens of one sequence: a chain, or a tree of alternatives.

    Attributes
    ----------
    tokens
        One per node, none for a plain step.
    parents
        The node before each node, -1 for the committed text, each before its children; () for a chain.

    Raises
    ------
    ValueError
        If the parents do not fit.

    Examples
    --------
    >>> Draft((5, 6, 7), parents=(-1, -1, 0)).depth
    2
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.parents and len(self.parents) != len(self.tokens):
            raise ValueError(f"{len(self.parents)} parents were given for {len(self.tokens)} tokens: give one for each")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"parents[{node}]={parent} must be -1 or a node before it")

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Tokens of the pass that verifies it, the last committed one included."""
        return 1 + self.size

    def first(self, count: int) -> Draft:
        """The draft without what comes after so many nodes."""
        return self if count >= self.size else Draft(self.tokens[:count], self.parents[:count])

    @property
    def is_chain(self) -> bool:
        """Whether each node follows the one before it."""
        return not self.parents or self.parents == tuple(range(-1, self.size - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Tokens from the committed text to each node, that node included."""
        if self.is_chain:
            return tuple(range(1, self.size + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return max(self.depths, default=0)

    @property
    def nodes(self) -> int:
        """The size, as a draft is of one text."""
        return self.size

    def chain(self) -> Draft:
        """Its first path: of several tokens that may follow, the first."""
        if self.is_chain:
            return self
        tokens: list[int] = []
        node = next((i for i, parent in enumerate(self.parents) if parent < 0), None)
        while node is not None:
            tokens.append(self.tokens[node])
            node = next((i for i, parent in enumerate(self.parents) if parent == node), None)
        return Draft(tuple(tokens))

    def child(self, node: int, token: int) -> int | None:
        """The node that follows `node` (-1 for the committed text) with that token."""
        if self.is_chain:
            follows = node + 1 < self.size and self.tokens[node + 1] == token
            return node + 1 if follows else None
        nodes = (i for i in range(node + 1, self.size) if self.parents[i] == node and self.tokens[i] == token)
        return next(nodes, None)


@dataclass(frozen=True)
class Verdict:
    """What became of a draft.

    Attributes
    ----------
    path
        Accepted nodes, from the committed text on.
    tokens
        Newly committed tokens: those of the path, and the one that the model chose after it.
    likely
        The likeliest tokens after the committed text, and after each node of the draft, best first, with their
        probabilities; () where no drafter asked for them.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    likely: Sequence[Likely] = field(default=(), repr=False)


def likeliest_of(output: Tensor, count: int) -> Sequence[Sequence[Likely]]:
    """The `count` likeliest tokens of each row and node, by logits `[B, N, V]`; of equally likely ones any."""
    if not count:
        return [()] * len(output)
    shares, tokens = _largest(output.softmax(-1, dtype=torch.float32), count)
    rows = zip(tokens.tolist(), shares.tolist(), strict=True)
    return [[list(zip(*node, strict=True)) for node in zip(*row, strict=True)] for row in rows]


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `topk(count)` of `[..., V]`, faster: the largest stand in the blocks whose largest values are largest."""
    count, rest = min(count, values.shape[-1]), -values.shape[-1] % BLOCK
    padded = functional.pad(values, (0, rest), value=-torch.inf) if rest else values
    blocks = padded.unflatten(-1, (-1, BLOCK))
    chosen = blocks.amax(-1).topk(min(count, blocks.shape[-2])).indices
    within = chosen[..., None].expand(*chosen.shape, BLOCK)
    found, places = blocks.gather(-2, within).flatten(-2).topk(count)
    return found, chosen.gather(-1, places // BLOCK) * BLOCK + places % BLOCK


def match(draft: Draft, choose: Callable[[int], tuple[int, bool]]) -> Verdict:
    """Follow the model's own choices through a draft, as far as the draft has them (SpecInfer, Miao et al., 2024).

    Exact, sampled or greedy: each committed token is the model's own choice, given exactly the tokens before it, so the
    same source of randomness gives the very tokens that plain decoding gives. A guess x is accepted with probability
    p(x), and what comes in its place otherwise is distributed as p without x, the rule for one-hot drafts.

    Parameters
    ----------
    draft
        A chain or a tree.
    choose
        From a node (-1 for the committed text) to the token that the model chooses after it, and whether the text ends
        with that. It is called once for each committed token, in order.

    Examples
    --------
    >>> chosen = {-1: 5, 0: 6, 1: 9}
    >>> match(Draft((5, 6, 7)), lambda node: (chosen[node], False))
    Verdict(path=(0, 1), tokens=(5, 6, 9))
    """
    path: list[int] = []
    tokens: list[int] = []
    node: int | None = -1
    while node is not None:
        token, ended = choose(node)
        tokens.append(token)
        node = None if ended else draft.child(node, token)
        if node is not None:
            path.append(node)
    return Verdict(tuple(path), tuple(tokens))
