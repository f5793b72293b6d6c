"""How well the frames of a clip show the things of its prompt, and where: by comparing them with what was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch.nn.functional import conv2d

from mmaccel.zoo.worlds import moving_world as world
from mmaccel.zoo.worlds.emoji_world import sprite

LIKE = 0.25  # root of the mean squared error of a thing's pixels, up to which it is recognized
STILL = 6  # pixels that what stays may move


def errors(frames: torch.Tensor, names: list[str]) -> torch.Tensor:
    """How far each thing is from each place of each frame, `[N, names, rows, columns]`.

    The root of the mean squared difference to its picture, weighted by its alpha; `frames` are `[N, 3, H, W]` in
    [0, 1].
    """
    drawn = torch.from_numpy(np.stack([sprite(name, world.SPRITE_SIZE) for name in names])).float().to(frames.device)
    color, alpha = drawn[..., :3].permute(0, 3, 1, 2), drawn[..., 3][:, None]
    square = conv2d(frames.square().sum(1, keepdim=True), alpha)
    both = conv2d(frames, color * alpha)
    own = (color.square() * alpha).sum((1, 2, 3))[:, None, None]
    return ((square - 2 * both + own) / (3 * alpha.sum((1, 2, 3)))[:, None, None]).clamp(min=0).sqrt()


@dataclass(frozen=True)
class Asked:
    """What a prompt asks for: things and their motions."""

    prompt: str

    @cached_property
    def things(self) -> dict[str, str]:
        """Name of each thing to its motion."""
        parts = self.prompt.split(", ")
        pairs = [(part, motion) for part in parts for motion in world.MOTIONS if part.endswith(motion)]
        return {part.removesuffix(motion).strip(): motion for part, motion in pairs}

    def score(self, frames: torch.Tensor) -> torch.Tensor:
        """How well frames `[B, T, 3, H, W]` show the worst of the things, `[B, T]`: 1 is as it was drawn."""
        found = errors(frames.flatten(0, 1).float(), list(self.things)).amin((2, 3))
        return 1 - found.amax(1).view(frames.shape[:2])

    def recognized(self, frames: torch.Tensor) -> float:
        """Share of the things that frames `[T, 3, H, W]` show, each more like itself than like anything else."""
        found = errors(frames.float(), list(world.NAMES)).amin((2, 3))
        shown = []
        for name in self.things:
            others = [i for i, other in enumerate(world.NAMES) if other not in self.things]
            own = found[:, world.NAMES.index(name)]
            shown.append((own < LIKE) & (own < found[:, others].amin(1)))
        return float(torch.stack(shown).float().mean())

    def moved(self, frames: torch.Tensor) -> float:
        """Share of the things that go where they should: half of the way at least, or nowhere."""
        found = errors(frames[[0, -1]].float(), list(self.things))
        width = found.shape[-1]
        places = torch.stack([found.flatten(2).argmin(2) // width, found.flatten(2).argmin(2) % width], -1)
        ways = (places[1] - places[0]).float()
        least = world.FAR.speed * len(frames) / 2
        right = []
        for way, motion in zip(ways, self.things.values(), strict=True):
            direction = torch.tensor(world.MOTIONS[motion], dtype=torch.float32)
            along, across = way @ direction, (way - (way @ direction) * direction).abs().max()
            right.append(bool(across < STILL and (along > least or not direction.any())))
        return sum(right) / len(right)
