"""Drafts that know how they were drawn, so that no rule that would bias the output can judge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from .probability import at, normalize, sample
from .rules import Drawn

# Distributions in half precision sum to one only this closely.
_SUM_TOLERANCE = 1e-2


def raise_first(failures: Sequence[tuple[Tensor, str]]) -> None:
    """Raise ValueError with the message of the first true flag, at the cost of one device synchronisation."""
    if not failures:
        return
    for failed, (_, message) in zip(torch.stack([flag for flag, _ in failures]).tolist(), failures, strict=True):
        if failed:
            raise ValueError(message)


@dataclass(frozen=True, eq=False)
class SparseDistribution:
    """A distribution on a few tokens: `ids [..., S]` int64 and their `probs [..., S]`, 0 everywhere else.

    Raises ValueError if the two shapes differ or `ids` holds no integers.

    Examples
    --------
    >>> SparseDistribution(torch.tensor([2, 0]), torch.tensor([0.75, 0.25])).dense(3).tolist()
    [0.25, 0.0, 0.75]
    """

    ids: Tensor
    probs: Tensor

    def __post_init__(self) -> None:
        if self.ids.shape != self.probs.shape or self.ids.dim() == 0:
            shapes = f"{list(self.ids.shape)} and {list(self.probs.shape)}"
            raise ValueError(f"sparse ids and probs must share a shape [..., S], got {shapes}")
        if not _integral(self.ids):
            raise ValueError(f"sparse ids must be integers, got {self.ids.dtype}")
        object.__setattr__(self, "ids", self.ids.long())

    def dense(self, vocabulary: int) -> Tensor:
        """Return `[..., V]` float32."""
        shape = (*self.ids.shape[:-1], vocabulary)
        zeros = torch.zeros(shape, dtype=torch.float32, device=self.ids.device)
        return zeros.scatter_add(-1, self.ids, self.probs.float())

    def at(self, tokens: Tensor) -> Tensor:
        """Return the probability `[...]` of `tokens [...]`."""
        return torch.where(self.ids == tokens.unsqueeze(-1), self.probs.float(), 0.0).sum(-1)


def _integral(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


@dataclass(frozen=True, eq=False)
class Draft:
    """K guessed tokens per sequence, and how they came about; use the constructors below.

    Attributes
    ----------
    tokens
        `[B, K]` int64; K = 0 is a plain decoding step.
    parent
        K node indices shared by the batch, -1 for the root, each before its children. A chain by default.
    q
        The distributions drawn from: None for deterministic drafts, `[B, K, V]` dense or sparse for sampled
        ones, and the one `[B, V]` distribution of children drawn without replacement.
    drawn
        "deterministic", "sampled" or "without_replacement"; decides which rules may judge the draft.

    Raises
    ------
    ValueError
        If the parts contradict each other, for instance a sampled token with q(d) = 0.

    Examples
    --------
    >>> Draft.deterministic(torch.tensor([[5, 6, 7]]), parent=(-1, -1, 0)).depth
    2
    """

    tokens: Tensor
    parent: tuple[int, ...] | Sequence[int] | Tensor | None = None
    q: Tensor | SparseDistribution | None = None
    drawn: Drawn = "deterministic"

    def __post_init__(self) -> None:
        if self.drawn not in get_args(Drawn):
            raise ValueError(f"drawn must be one of {get_args(Drawn)}, got {self.drawn!r}")
        if self.tokens.dim() != 2 or not _integral(self.tokens):
            got = f"{list(self.tokens.shape)} {self.tokens.dtype}"
            raise ValueError(f"draft tokens must be integers of shape [B, K], got {got}")
        object.__setattr__(self, "tokens", self.tokens.long())
        object.__setattr__(self, "parent", self._parents())
        self._check_parents()
        self._check_q_shape()
        raise_first(self._value_failures())

    @classmethod
    def deterministic(cls, tokens: Tensor, parent: Sequence[int] | Tensor | None = None) -> Draft:
        """Guesses `[B, K]` made without chance (lookup, argmax, forced tokens): a chain or a tree."""
        return cls(tokens, parent, None, "deterministic")

    @classmethod
    def sampled(cls, tokens: Tensor, q: Tensor | SparseDistribution) -> Draft:
        """A chain `[B, K]` whose token i was drawn from `q[:, i]`."""
        return cls(tokens, None, q, "sampled")

    @classmethod
    def without_replacement(cls, tokens: Tensor, q: Tensor | SparseDistribution) -> Draft:
        """K children `[B, K]` of the root, in the order drawn without replacement from one `q [B, V]`."""
        return cls(tokens, None, q, "without_replacement")

    @classmethod
    def draw(cls, q: Tensor | SparseDistribution, generator: torch.Generator | None = None) -> Draft:
        """Draw a chain `[B, K]` from `q [B, K, V]` and return it with its distribution."""
        if isinstance(q, SparseDistribution):
            return cls.sampled(at(q.ids, sample(q.probs, generator)), q)
        return cls.sampled(sample(q, generator), q)

    @property
    def size(self) -> int:
        """Number of draft tokens K per sequence."""
        return self.tokens.shape[1]

    @property
    def parents(self) -> tuple[int, ...]:
        """`parent` as a tuple of ints, whatever it was built from."""
        assert isinstance(self.parent, tuple)
        return self.parent

    @property
    def depth(self) -> int:
        """Length of the longest path from the root."""
        depths: list[int] = []
        for node in self.parents:
            depths.append(1 if node < 0 else depths[node] + 1)
        return max(depths, default=0)

    def dense_q(self, vocabulary: int) -> Tensor | None:
        """Return q in float32, `[B, K, V]` (or `[B, V]` without replacement), or None."""
        if self.q is None:
            return None
        return normalize(self.q.dense(vocabulary) if isinstance(self.q, SparseDistribution) else self.q)

    def _parents(self) -> tuple[int, ...]:
        if self.parent is None:
            siblings = self.drawn == "without_replacement"
            return tuple(-1 if siblings else i - 1 for i in range(self.size))
        values = self.parent.tolist() if isinstance(self.parent, Tensor) else self.parent
        return tuple(int(node) for node in values)

    def _check_parents(self) -> None:
        parents, size = self.parents, self.size
        if len(parents) != size:
            raise ValueError(f"parent must name one node per draft token, got {len(parents)} for K={size}")
        for i, node in enumerate(parents):
            if not -1 <= node < i:
                raise ValueError(f"parent[{i}]={node} must be -1 or a node before it")
        if self.drawn == "sampled" and parents != tuple(range(-1, size - 1)):
            raise ValueError(f"a sampled draft must be a chain, got parent={parents}")
        if self.drawn == "without_replacement" and any(node != -1 for node in parents):
            raise ValueError(f"tokens drawn without replacement must be children of the root, got {parents}")

    def _check_q_shape(self) -> None:
        if self.drawn == "deterministic":
            if self.q is not None:
                raise ValueError("a deterministic draft takes no q; use Draft.sampled for tokens drawn from q")
            return
        if self.q is None:
            raise ValueError(f"a draft drawn {self.drawn!r} needs the q it was drawn from")
        values = self.q.probs if isinstance(self.q, SparseDistribution) else self.q
        lead = self.tokens.shape if self.drawn == "sampled" else self.tokens.shape[:1]
        if values.dim() != len(lead) + 1 or values.shape[:-1] != lead or values.shape[-1] == 0:
            raise ValueError(f"q must be {[*lead, 'V']} for a draft drawn {self.drawn!r}, got {list(values.shape)}")
        if values.device != self.tokens.device:
            raise ValueError(f"q is on {values.device} but the draft tokens are on {self.tokens.device}")

    def _value_failures(self) -> list[tuple[Tensor, str]]:
        tokens, q = self.tokens, self.q
        failures = [((tokens < 0).any(), "draft tokens must not be negative")]
        if q is None:
            return failures
        sparse = isinstance(q, SparseDistribution)
        values = (q.probs if isinstance(q, SparseDistribution) else q).float()
        failures.append((values.isnan().any(), "q holds NaN"))
        failures.append(((values < 0).any(), "q holds negative probabilities"))
        off = (values.sum(-1) - 1).abs() > _SUM_TOLERANCE
        failures.append((off.any(), "q must sum to 1 over the vocabulary"))
        if isinstance(q, SparseDistribution):
            failures.append(((q.ids < 0).any(), "q holds negative token ids"))
        if not sparse:
            vocabulary = values.shape[-1]
            outside = (tokens >= vocabulary).any()
            failures.append((outside, f"draft tokens must be below the vocabulary size {vocabulary} of q"))
        failures.append(((self._q_of_tokens() <= 0).any(), "q(d) = 0 for a draft token: it was not drawn from q"))
        if self.drawn == "without_replacement":
            same = (tokens.unsqueeze(-1) == tokens.unsqueeze(-2)).sum((-1, -2)) > self.size
            failures.append((same.any(), "children drawn without replacement must not repeat a token"))
        return failures

    def _q_of_tokens(self) -> Tensor:
        """Return q(d) `[B, K]`; ids out of range read some other entry and are reported on their own."""
        q, tokens = self.q, self.tokens
        siblings = self.drawn == "without_replacement"
        if isinstance(q, SparseDistribution):
            if siblings:
                q = SparseDistribution(q.ids.unsqueeze(1), q.probs.unsqueeze(1))
            return q.at(tokens)
        assert q is not None
        wide = q.unsqueeze(1).expand(-1, self.size, -1) if siblings else q
        return at(wide.float(), tokens.clamp(0, wide.shape[-1] - 1))
