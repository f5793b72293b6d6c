"""Pictures and captions that `tiny-janus` learns from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmaccel.zoo.worlds import emoji_world as world


def draw(
    seed: int, step: int, count: int, held_out: bool = False, things: tuple[str, ...] | None = None
) -> tuple[torch.Tensor, list[str]]:
    """A batch of pictures (uint8 `[count, H, W, 3]`) and captions, a pure function of seed and step."""
    rng = np.random.default_rng([seed, step, int(held_out)])
    pictures, captions = [], []
    for _ in range(count):
        scene = world.draw_scene(rng, held_out, things)
        pictures.append(world.render(scene, rng))
        captions.append(world.caption(scene, rng))
    return torch.from_numpy(np.stack(pictures)), captions


def said_of(things: Sequence[str]) -> dict[str, object]:
    """What a model tells of the captions that it learnt: the things in them, and what can be said of these."""
    words = {"sizes": world.SIZES, "backgrounds": world.BACKGROUNDS, "places": world.PLACES}
    return {"names": list(things), **{name: list(known) for name, known in words.items()}}
