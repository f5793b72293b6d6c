"""Leaving visual tokens out in training, so that `tiny-onevision` answers from a part of them, as large models do.

Of no method in particular: which tokens stay is drawn, and in half of the steps those left out are merged into those
that stay.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F

from .data import GROUNDS, THINGS, Batch
from .shape import SIDE

LEAST, LEAST_NEW = 0.08, 0.02  # share of the tokens that is always left, and where those that repeat go first
LATE_LEAST, LATE_MOST = 0.2, 0.9  # and of these inside the language model, where it has fewer
SCARCE = 0.03  # least share of the frames that have a thing's tokens, where things are shown unevenly


@dataclasses.dataclass
class Thinned:
    """What is left of a batch of clips.

    Attributes
    ----------
    features : `[B, T * SIDE * SIDE + 1, D]`
        All features; those of kept tokens are means with the ones that were merged into them.
    kept : int64 `[B, K]`
        Sorted indices of the visual tokens that the language model gets.
    late : int64 `[B, M]`
        Sorted indices into these, of those that its last layers still have.
    late_own : float or None
        Weight of a token in the last layers against the mean of those that join it there; None to drop these.
    batch
        With the labels of the kept tokens only.
    """

    features: torch.Tensor
    kept: torch.Tensor
    late: torch.Tensor
    late_own: float | None
    batch: Batch


def thin(
    features: torch.Tensor, batch: Batch, seed: list[int], most: float = 1.0, attention: torch.Tensor | None = None
) -> Thinned:
    """Leave out tokens of each clip; a pure function of the seed.

    The share is drawn between `LEAST` and `most`, small ones as often as large ones. Things are preferred by a random
    weight or not at all; given what each token of a frame received, `attention` `[B * T, SIDE * SIDE]`, half of the
    draws go by its order in the frame instead, as many methods do. In half of the steps those that show what the frame
    before showed at the same place go first, above a random similarity, the share may be down to `LEAST_NEW`, and in
    half of these each of the others is the mean of itself and those that repeat it. In half of the steps things are
    shown unevenly, as :func:`scarce` has it. Most of the time the last layers have fewer still.
    """
    rng = np.random.default_rng(seed)
    things = batch.things.flatten(1)
    count, total = things.shape
    once = rng.random() < 0.5
    kept = round(total * np.exp(rng.uniform(np.log(LEAST_NEW if once else LEAST), np.log(most))))
    if attention is not None and rng.random() < 0.5:
        scores = attention.argsort(-1).argsort(-1).reshape(count, total) / SIDE**2
    else:
        weight = rng.uniform(0, 1.5) if rng.random() < 0.7 else 0.0
        shown = ((things >= 0) & (things < len(THINGS))).float()
        scores = torch.from_numpy(rng.random((count, total))).float() + weight * shown
    if once:
        again = repeated(features[:, :-1], rng.uniform(0.65, 0.98))
        scores -= 3 * again
        if rng.random() < 0.5:
            features = torch.cat([averaged(features[:, :-1], again), features[:, -1:]], 1)
    if rng.random() < 0.5:
        scores -= 3 * scarce(batch.things, rng)
    index = scores.topk(kept).indices.sort().values
    if rng.random() < 0.5:
        merged = joined(features[:, :-1], index, rng.uniform(0.1, 1))
        features = torch.cat([features[:, :-1].scatter(1, _wide(index, features), merged), features[:, -1:]], 1)
    left = round(kept * rng.uniform(LATE_LEAST, LATE_MOST)) if rng.random() < 0.7 else kept
    late = torch.from_numpy(rng.random((count, kept))).topk(left).indices.sort().values
    own = rng.uniform(0.1, 1) if rng.random() < 0.6 else None
    dense = ("things", "tracks", "arrivals")
    labels = {name: getattr(batch, name).flatten(1).gather(1, index)[:, None] for name in dense}
    return Thinned(features, index, late, own, dataclasses.replace(batch, **labels))


def scarce(things: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """1 where what a token shows is left out of its frame, `[B, T, SIDE * SIDE]` to `[B, T * SIDE * SIDE]`.

    Each thing, and each background, is in a share of the frames of its own, from `SCARCE` to all: a thing that stands
    still may be told once where one that moves is told in each frame. The frame in which it comes always has it.
    """
    kinds = len(THINGS) + len(GROUNDS) + 1  # the last one for the edges of things
    shown = torch.where(things < 0, kinds - 1, things)
    present = F.one_hot(shown, kinds).amax(2)
    comes = present > F.pad(present, (0, 0, 1, 0))[:, :-1]
    shares = np.exp(rng.uniform(np.log(SCARCE), 0, (len(things), 1, kinds)))
    left_out = torch.from_numpy(rng.random(comes.shape) > shares) & ~comes
    return left_out.gather(2, shown).flatten(1).float()


def repeated(tokens: torch.Tensor, tau: float) -> torch.Tensor:
    """1 where a token `[B, T * SIDE * SIDE, D]` is like the one at its place in the frame before, 0 elsewhere."""
    frames = tokens.float().unflatten(1, (-1, SIDE**2))
    similar = F.cosine_similarity(frames[:, 1:], frames[:, :-1], dim=-1) > tau
    return F.pad(similar.float().flatten(1), (SIDE**2, 0))


def averaged(tokens: torch.Tensor, again: torch.Tensor) -> torch.Tensor:
    """Tokens `[B, T * SIDE * SIDE, D]`, each the mean of its run: a new one at its place and its repeats.

    `again` is 1 where a token repeats the one before, as :func:`repeated` finds them.
    """
    frames = tokens.unflatten(1, (-1, SIDE**2))
    run = (1 - again).unflatten(1, (-1, SIDE**2)).cumsum(1).long() - 1
    sizes = torch.zeros(run.shape).scatter_add(1, run, torch.ones(run.shape))
    index = run[..., None].expand(frames.shape)
    means = torch.zeros(frames.shape).scatter_add(1, index, frames.float()) / sizes.clamp(min=1)[..., None]
    return means.gather(1, index).to(tokens.dtype).flatten(1, 2)


def joined(tokens: torch.Tensor, index: torch.Tensor, own: float) -> torch.Tensor:
    """Tokens `[B, N, D]` at `index` `[B, K]`, those left out merged into the most similar one of them, `[B, K, D]`.

    `own` is the weight of a token against the mean of those that join it; without any it stays as it is.
    """
    kept = tokens.gather(1, _wide(index, tokens))
    with torch.no_grad():
        left = torch.ones(tokens.shape[:2]).scatter(1, index, 0.0)
        similarity = F.normalize(tokens.float(), dim=-1) @ F.normalize(kept.float(), dim=-1).mT
        nearest = similarity.argmax(-1)
        sizes = torch.zeros(index.shape).scatter_add(1, nearest, left)
    sums = torch.zeros_like(kept).scatter_add(1, _wide(nearest, tokens), tokens * left[..., None].to(tokens.dtype))
    means = sums / sizes.clamp(min=1)[..., None].to(tokens.dtype)
    return torch.where(sizes[..., None] > 0, own * kept + (1 - own) * means, kept)


def _wide(index: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return index[..., None].expand(-1, -1, tokens.shape[2])
