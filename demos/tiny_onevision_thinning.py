"""Leaving visual tokens out in training, so that `tiny-onevision` answers from a part of them, as large models do."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from .tiny_onevision_data import THINGS, Batch

LEAST = 0.08  # share of the tokens that is always left
LATE_LEAST = 0.4  # and of these inside the language model


def thin(batch: Batch, seed: list[int]) -> tuple[torch.Tensor, torch.Tensor, Batch]:
    """Leave out random tokens of each clip; a pure function of the seed.

    The share is drawn between `LEAST` and 1, small ones as often as large ones. Things are preferred by a random
    weight, as methods that go by attention do, or not at all. In half of the steps the last layers lose more.

    Returns
    -------
    kept : int64 `[B, K]`
        Sorted indices of the visual tokens that the language model gets.
    late : int64 `[B, M]`
        Sorted indices into these, of those that its last layers still have.
    batch
        With the labels of the kept tokens only.
    """
    rng = np.random.default_rng(seed)
    things = batch.things.flatten(1)
    count, total = things.shape
    kept = round(total * np.exp(rng.uniform(np.log(LEAST), 0)))
    weight = rng.uniform(0, 1.5) if rng.random() < 0.7 else 0.0
    shown = ((things >= 0) & (things < len(THINGS))).float()
    scores = torch.from_numpy(rng.random((count, total))).float() + weight * shown
    index = scores.topk(kept).indices.sort().values
    left = round(kept * rng.uniform(LATE_LEAST, 1)) if rng.random() < 0.5 else kept
    late = torch.from_numpy(rng.random((count, kept))).topk(left).indices.sort().values
    dense = ("things", "tracks", "arrivals")
    labels = {name: getattr(batch, name).flatten(1).gather(1, index)[:, None] for name in dense}
    return index, late, dataclasses.replace(batch, **labels)
