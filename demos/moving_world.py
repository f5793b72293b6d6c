"""A small world of captioned clips: one or two Noto emoji that move over textured paper.

Every clip has what a video model has to learn (things, where each goes, a background) and what a caption does not
tell (where a thing starts, hue and grain of the paper). How much of it stands still is known beforehand, so methods
that spend less on still tokens can be measured on clips with much and with little motion.

A clip is a pure function of its seed, and carries its facts, from which questions can be made.

Example
-------
>>> clip = draw_clip(7)
>>> clip.caption
'banana stays, christmas tree moves up, pink background'
>>> clip.frames.shape, clip.places.shape  # frames, height, width, channels; things, frames, (top, left)
((17, 64, 64, 3), (2, 17, 2))
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from .emoji_world import IMAGE_SIZE, paper, paste, sprite

NAMES = (
    "rocket",
    "pizza",
    "red heart",
    "star",
    "soccer ball",
    "frog",
    "penguin",
    "gem stone",
    "banana",
    "robot",
    "sunflower",
    "hamburger",
    "christmas tree",
    "mushroom",
)
# rows and columns, a frame
MOTIONS = {
    "stays": (0, 0),
    "moves up": (-1, 0),
    "moves down": (1, 0),
    "moves left": (0, -1),
    "moves right": (0, 1),
}
BACKGROUNDS = ("white", "gray", "blue", "green", "pink", "purple")
FRAMES = 17
SPRITE_SIZE = 24
SPEED = 2  # pixels a frame: half the picture in one clip
STEP = 8  # things start on this grid of pixels: that of the tokens of `tiny-wan`
TOUCH = 4  # boxes may overlap by so many pixels: no glyph fills its box


@dataclass(frozen=True)
class Actor:
    """A thing and what it does."""

    name: str
    motion: str

    @property
    def moving(self) -> bool:
        return MOTIONS[self.motion] != (0, 0)


@dataclass(frozen=True)
class Scene:
    """What a caption can tell about one clip."""

    actors: tuple[Actor, ...]
    background: str

    @property
    def moving(self) -> int:
        """Number of things that move."""
        return sum(actor.moving for actor in self.actors)

    @property
    def held_out(self) -> bool:
        """About one scene in forty is never trained on."""
        digest = hashlib.sha256(repr(self).encode()).digest()
        return digest[0] < 6


@dataclass(frozen=True, eq=False)
class Clip:
    """One drawn clip with everything that is known about it."""

    frames: np.ndarray  # uint8 [FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3]
    caption: str
    scene: Scene
    places: np.ndarray  # int [actors, FRAMES, 2]: top and left of each thing's box of SPRITE_SIZE pixels


def random_scene(rng: np.random.Generator) -> Scene:
    """One or two different things, each with a motion, on a background."""
    count = 1 if rng.random() < 0.35 else 2
    names = rng.choice(NAMES, count, replace=False)
    motions = rng.choice(list(MOTIONS), count, p=[0.28] + [0.18] * 4)
    actors = tuple(Actor(str(name), str(motion)) for name, motion in zip(names, motions, strict=True))
    return Scene(actors, str(rng.choice(BACKGROUNDS)))


def caption(scene: Scene, rng: np.random.Generator | None = None) -> str:
    """The caption of a scene; with `rng`, a tenth of what is known is left out, as people do."""

    def told() -> bool:
        return rng is None or bool(rng.random() < 0.9)

    parts = [f"{actor.name} {actor.motion}" if told() else actor.name for actor in scene.actors]
    if told():
        parts.append(f"{scene.background} background")
    return ", ".join(parts)


def draw_clip(seed: int | list[int], held_out: bool | None = False, full_caption: bool = True) -> Clip:
    """One clip, a pure function of its arguments.

    Parameters
    ----------
    seed
        Anything that `numpy.random.default_rng` takes.
    held_out
        False gives a scene to train on, True one never trained on, None any.
    full_caption
        Tell everything, or leave out a tenth.
    """
    rng = np.random.default_rng(seed)
    scene = random_scene(rng)
    while held_out is not None and scene.held_out != held_out:
        scene = random_scene(rng)
    frames, places = render(scene, rng)
    return Clip(frames, caption(scene, None if full_caption else rng), scene, places)


def render(scene: Scene, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the scene: frames as uint8 `[FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3]`, places `[actors, FRAMES, 2]`."""
    ground, places = paper(scene.background, rng), _places(scene, rng)
    frames = np.repeat(ground[None], FRAMES, 0)
    for actor, path in zip(scene.actors, places, strict=True):
        picture = sprite(actor.name, SPRITE_SIZE)
        for frame, (top, left) in zip(frames, path, strict=True):
            paste(frame, picture, top, left)
    return (frames.clip(0, 1) * 255).round().astype(np.uint8), places


def _places(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Where each thing is in each frame: all inside the picture, none on top of another."""
    while True:
        places = np.stack([_path(actor, rng) for actor in scene.actors])
        if len(places) == 1 or (np.abs(places[0] - places[1]).max(-1) >= SPRITE_SIZE - TOUCH).all():
            return places


def _path(actor: Actor, rng: np.random.Generator) -> np.ndarray:
    travel = np.array(MOTIONS[actor.motion]) * SPEED * np.arange(FRAMES)[:, None]
    free = (IMAGE_SIZE - SPRITE_SIZE - np.abs(travel[-1])) // STEP
    start = rng.integers(0, free + 1) * STEP - travel[-1].clip(max=0)
    return start + travel
