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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .emoji_world import IMAGE_SIZE, kept_out, paper, paste, sprite

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


LATE = (8, 12, 16, 20)  # frames at which things may appear later than the clip begins
TRIES = 40  # places to try before a scene is too crowded


@dataclass(frozen=True)
class Footage:
    """How long clips are, the speed of things in pixels a frame, and how much happens; by default as in `tiny-wan`."""

    frames: int = FRAMES
    speed: float = SPEED
    things: tuple[float, ...] = (0.35, 0.65)  # chances of one thing, two things, ...
    late: float = 0.0  # chance that a thing other than the first appears later


WAN = Footage()
FAR = Footage(frames=71, speed=0.5)  # 36 latent frames, in blocks of four
# 32 frames at half the speed; up to three things, some of which appear later
ONEVISION = Footage(frames=32, speed=1, things=(0.2, 0.4, 0.4), late=0.5)


@dataclass(frozen=True)
class Actor:
    """A thing and what it does."""

    name: str
    motion: str
    appears: int = field(default=0, repr=False)  # its first frame; not in `repr`: what is held out ignores it
    gone: int | None = field(default=None, repr=False)  # the frame from which it is gone; None if it stays to the end

    @property
    def moving(self) -> bool:
        return MOTIONS[self.motion] != (0, 0)

    def is_seen(self, time: int) -> bool:
        """Whether the frame with this number shows it."""
        return self.appears <= time and (self.gone is None or time < self.gone)


@dataclass(frozen=True)
class MovingScene:
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
        return kept_out("Scene(" + repr(self).partition("(")[2])  # whatever the class is called


@dataclass(frozen=True, eq=False)
class Clip:
    """One drawn clip with everything that is known about it."""

    frames: np.ndarray  # uint8 [frames, IMAGE_SIZE, IMAGE_SIZE, 3]
    caption: str
    scene: MovingScene
    places: np.ndarray  # int [actors, frames, 2]: top and left of each thing's box of SPRITE_SIZE pixels


def random_scene(rng: np.random.Generator, footage: Footage = WAN) -> MovingScene:
    """A few different things, each with a motion, on a background."""
    count = 1 + int(np.searchsorted(np.cumsum(footage.things[:-1]), rng.random(), side="right"))
    names = rng.choice(NAMES, count, replace=False)
    motions = rng.choice(list(MOTIONS), count, p=[0.28] + [0.18] * 4)
    appears = _appearances(count, rng, footage)
    actors = tuple(Actor(str(n), str(m), a) for n, m, a in zip(names, motions, appears, strict=True))
    return MovingScene(actors, str(rng.choice(BACKGROUNDS)))


def _appearances(count: int, rng: np.random.Generator, footage: Footage) -> list[int]:
    """The first frame of each thing: one is there from the start, no two come later at the same time."""
    if not footage.late:
        return [0] * count
    late = rng.choice(LATE, count, replace=False) * (rng.random(count) < footage.late)
    late[rng.integers(count)] = 0
    return late.tolist()


def caption(scene: MovingScene, rng: np.random.Generator | None = None) -> str:
    """The caption of a scene; with `rng`, a tenth of what is known is left out, as people do."""

    def told() -> bool:
        return rng is None or bool(rng.random() < 0.9)

    parts = [f"{actor.name} {actor.motion}" if told() else actor.name for actor in scene.actors]
    if told():
        parts.append(f"{scene.background} background")
    return ", ".join(parts)


def draw_clip(
    seed: int | list[int],
    held_out: bool | None = False,
    full_caption: bool = True,
    footage: Footage = WAN,
    sprites: Callable[[str, int], np.ndarray] = sprite,
    times: Sequence[int] | None = None,
) -> Clip:
    """One clip, a pure function of its arguments.

    Parameters
    ----------
    seed
        Anything that `numpy.random.default_rng` takes.
    held_out
        False gives a scene to train on, True one never trained on, None any.
    full_caption
        Tell everything, or leave out a tenth.
    footage
        Length and contents.
    sprites
        Gives a thing's picture `[size, size, 4]` in [0, 1] by its name and size; draws it with the font by default.
    times
        Which frames to draw; all by default. The clip's places are those of all frames.
    """
    rng = np.random.default_rng(seed)
    while True:
        scene = random_scene(rng, footage)
        while held_out is not None and scene.held_out != held_out:
            scene = random_scene(rng, footage)
        rendered = render(scene, rng, footage, sprites, times)
        if rendered is not None:
            return Clip(rendered[0], caption(scene, None if full_caption else rng), scene, rendered[1])


def render(
    scene: MovingScene,
    rng: np.random.Generator,
    footage: Footage = WAN,
    sprites: Callable[[str, int], np.ndarray] = sprite,
    times: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Draw the scene: frames as uint8 `[frames, IMAGE_SIZE, IMAGE_SIZE, 3]`, places `[actors, frames, 2]`.

    None if there is no room for all things: that of three and more, never of two.
    """
    ground, places = paper(scene.background, rng), _places(scene, rng, footage)
    if places is None:
        return None
    return paint(scene, ground, places, sprites, range(footage.frames) if times is None else times), places


def paint(
    scene: MovingScene,
    ground: np.ndarray,
    places: np.ndarray,
    sprites: Callable[[str, int], np.ndarray],
    times: Sequence[int],
) -> np.ndarray:
    """Frames of a scene whose things are at `places`, as uint8 `[times, IMAGE_SIZE, IMAGE_SIZE, 3]`."""
    frames = np.repeat(ground[None], len(times), 0)
    for actor, path in zip(scene.actors, places, strict=True):
        picture = sprites(actor.name, SPRITE_SIZE)
        for frame, time in zip(frames, times, strict=True):
            if actor.is_seen(time):
                paste(frame, picture, *path[time])
    return (frames.clip(0, 1) * 255).round().astype(np.uint8)


def _places(scene: MovingScene, rng: np.random.Generator, footage: Footage) -> np.ndarray | None:
    """Where each thing is in each frame: all inside the picture, none on top of another."""
    first, second = np.triu_indices(len(scene.actors), 1)
    tries = 0
    while len(scene.actors) < 3 or tries < TRIES:
        tries += 1
        places = np.stack([_path(actor, rng, footage) for actor in scene.actors])
        if apart(places[first], places[second]).all():
            return places
    return None


def apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether things with their boxes at these places `[..., 2]` are beside each other."""
    return np.abs(one - other).max(-1) >= SPRITE_SIZE - TOUCH


def _path(actor: Actor, rng: np.random.Generator, footage: Footage) -> np.ndarray:
    way = np.array(MOTIONS[actor.motion]) * footage.speed * np.arange(footage.frames)[:, None]
    travel = way.astype(int)
    free = (IMAGE_SIZE - SPRITE_SIZE - np.abs(travel[-1])) // STEP
    start = rng.integers(0, free + 1) * STEP - travel[-1].clip(max=0)
    return start + travel
