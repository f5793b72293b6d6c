"""What `tiny-unet` learns from: pictures of the emoji world with a caption each."""

from __future__ import annotations

import numpy as np
import torch

from mmaccel.zoo.worlds import emoji_world as world

from .shape import THINGS

TRAINING, HELD_OUT = 0, 1  # streams of seeds


def draw(stream: int, seed: int, number: int, count: int) -> tuple[torch.Tensor, list[str]]:
    """Pictures uint8 `[count, H, W, 3]` and captions; a pure function of its arguments.

    Captions to train on leave out some of what is seen.
    """
    rng = np.random.default_rng([stream, seed, number])
    held_out = stream == HELD_OUT
    scenes = [world.draw_scene(rng, held_out, THINGS) for _ in range(count)]
    captions = [world.caption(scene, None if held_out else rng) for scene in scenes]
    return torch.from_numpy(np.stack([world.render(scene, rng) for scene in scenes])), captions
