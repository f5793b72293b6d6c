"""Patch tokens of an image tower that are pruned and merged on the way, as the class token and its anchor see them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.patching import hook

from .reservoir import Reservoir

CENTERS = 4  # tokens into which the middle ones merge, as in the reference code


class Condensing:
    """Hooks in the layers of one tower, and what they note of the pass at hand.

    Attributes
    ----------
    seen : list of `[B, D]`
        The class token after each layer, where there is a reservoir.
    patches : list of int
        Patch tokens that went into each layer.
    """

    def __init__(self, layers: list[Any], counts: Mapping[int, float]) -> None:
        self.layers, self.counts = layers, counts
        self.reservoir: Reservoir | None = None
        self.begin(None)

    def begin(self, reservoir: Reservoir | None) -> None:
        """Before a pass: forget the one before, which may have broken off."""
        self.reservoir = reservoir
        self.seen: list[torch.Tensor] = []
        self.patches: list[int] = []
        self.anchored = False
        self.query = self.key = torch.empty(0)

    def attach(self, stack: ExitStack) -> None:
        """Hook the layers, until `stack` closes."""
        for number, layer in enumerate(self.layers, 1):
            before = functools.partial(self._before, number)
            hook(stack, layer, before, functools.partial(self._after, number))
            if number in self.counts:
                hook(stack, layer.self_attn.q_proj, after=self._note_query)
                hook(stack, layer.self_attn.k_proj, after=self._note_key)

    def _before(self, number: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before a layer after which tokens go: the anchor most like the class token stands among them."""
        hidden = args[0]
        self.patches.append(hidden.shape[1] - 1)
        if number not in self.counts or number == 1 or self.reservoir is None:
            return None
        anchors = self.reservoir.anchors(number - 2)
        if anchors is None:
            return None
        anchors = anchors.to(hidden.device)  # the model may have been moved since
        nearest = torch.cosine_similarity(hidden[:, :1].float(), anchors[None].float(), dim=-1).argmax(1)
        self.anchored = True
        return (torch.cat([hidden, anchors[nearest].to(hidden)[:, None]], 1), *args[1:]), kwargs

    def _note_query(self, module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        self.query = output[:, 0]

    def _note_key(self, module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        self.key = output

    def _after(self, number: int, module: Any, args: Any, kwargs: Any, hidden: torch.Tensor) -> Any:
        """After a layer: note its class token, and keep fewer patches where it is one of those."""
        if self.reservoir is not None:
            self.seen.append(hidden[:, 0].detach().clone())  # a view would keep the patches as well
        if number not in self.counts:
            return None
        end = hidden.shape[1] - self.anchored
        self.anchored = False
        scores = ranks(self.query, self.key[:, 1:end], module.self_attn.num_heads)
        count = max(1, round(self.counts[number] * self.patches[0]))
        self.query = self.key = torch.empty(0)
        return torch.cat([hidden[:, :1], self.left(hidden[:, 1:end], scores, count)], 1)

    def left(self, patches: torch.Tensor, scores: torch.Tensor, count: int) -> torch.Tensor:
        """What is left of the patches `[B, N, D]` after a layer, `[B, count, D]`; the scores `[B, N]` rank them."""
        return condense(patches, scores, count)


def ranks(query: torch.Tensor, key: torch.Tensor, heads: int) -> torch.Tensor:
    """The rank of each patch in the attention of the class token, a mean over heads, `[B, E]` and `[B, N, E]`.

    Returns
    -------
    float32 `[B, N]`, from 0 for a patch that every head sees least.
    """
    query, key = (x.float().unflatten(-1, (heads, -1)) for x in (query, key))  # half precision has many ties
    scores = (query[:, None] * key).sum(-1).transpose(1, 2)  # no matrix product: autocast would take that in half
    return scores.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True).float().mean(1)


def condense(patches: torch.Tensor, scores: torch.Tensor, count: int) -> torch.Tensor:
    """Leave `count` of the patch tokens: the best as they are, the middle ones merged into few, the rest gone.

    Twice as many are merged as are pruned, as in the reference code.

    Parameters
    ----------
    patches : `[B, N, D]`
    scores : `[B, N]`
        What ranks them; higher is better.

    Examples
    --------
    >>> condense(torch.randn(2, 49, 8), torch.rand(2, 49), 30).shape
    torch.Size([2, 30, 8])
    """
    length = patches.shape[1]
    if count >= length:
        return patches
    centers = min(CENTERS, count)
    pruned = (length - count + centers) // 3
    order = scores.argsort(dim=1, descending=True, stable=True)[:, : length - pruned]
    ordered = patches.gather(1, order[..., None].expand(-1, -1, patches.shape[2]))
    best, middle = ordered.split([count - centers, length - pruned - count + centers], 1)
    return torch.cat([best, merge(middle, centers)], 1)


def merge(tokens: torch.Tensor, centers: int) -> torch.Tensor:
    """Merge `[B, M, D]` into so many: the first token and those farthest from all before it are centres.

    Each other token joins the nearest centre, and counts the less the farther it is.
    """
    values = tokens.float()
    share = _shares(values.detach(), centers)
    return (share.mT @ values).to(tokens.dtype)


@torch.no_grad()
def _shares(values: torch.Tensor, centers: int) -> torch.Tensor:
    """How much of each token `[B, M, D]` goes into each of the merged ones, float32 `[B, M, centers]`."""
    batch, length, _ = values.shape
    row = torch.arange(batch, device=values.device)
    index = torch.zeros_like(row)
    least = values.new_full((batch, length), float("inf"))
    found = []
    for _ in range(centers):
        distance = (values - values[row, index][:, None]).norm(dim=-1)
        distance[row, index] = -1.0  # a centre is its own, whatever equals it
        found.append(distance)
        least = torch.minimum(least, distance)
        index = least.argmax(1)
    distance, owner = torch.stack(found).min(0)
    share = torch.nn.functional.one_hot(owner, centers) / distance.clamp(min=1.0)[..., None]
    return share / share.sum(1, keepdim=True)
