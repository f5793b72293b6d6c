"""Clips of the moving world in which things come for a moment, so that no frames can be skipped.

Beside one or two things that are there from the start, another one is seen for a few frames only: it stands where it
comes or crosses the picture, and is gone. Questions are about this one. There is no second one: models are
trained on things that stay once they came, and of two that are gone `tiny-onevision` often tells only one.

A clip is a pure function of its seed, its length and its pictures of things.

Example
-------
>>> clip = draw_clip(1)
>>> clip.scene.actors[-1].appears, clip.scene.actors[-1].gone
(21, 25)
>>> [(q.text, q.answer) for q in questions(clip)][:2]
[('how many things are there?', 'two'), ('what comes last?', 'pizza')]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import moving_questions
from .emoji_world import IMAGE_SIZE, paper, sprite
from .moving_questions import Question
from .moving_world import (
    BACKGROUNDS,
    MOTIONS,
    NAMES,
    ONEVISION,
    SPRITE_SIZE,
    STEP,
    TRIES,
    Actor,
    Clip,
    MovingScene,
    apart,
    caption,
    paint,
)

FRAMES = ONEVISION.frames
STANDS, CROSSES = (2, 4), (5, 8)  # the fewest and the most frames in which a thing is seen that stands, that crosses
MOST_LASTING = 2  # things that are there from the start
EARLIEST = 6  # frames before the brief thing
AT_THE_END = 0.15  # chance that it is seen to the end of the clip
FREE = IMAGE_SIZE - SPRITE_SIZE  # pixels from one edge to the other
SHORTEST = 16  # frames of a clip


def draw_clip(
    seed: int | list[int],
    held_out: bool | None = True,
    frames: int = FRAMES,
    sprites: Callable[[str, int], np.ndarray] = sprite,
) -> Clip:
    """One clip, a pure function of its arguments.

    Parameters
    ----------
    seed
        Anything that `numpy.random.default_rng` takes.
    held_out
        As in :func:`moving_world.draw_clip`; nothing was trained on clips of this kind.
    frames
        Length of the clip; things that last move as far in a long one as in a short one, brief ones are as brief.
    sprites
        Gives a thing's picture `[size, size, 4]` in [0, 1] by its name and size; draws it with the font by default.
    """
    rng = np.random.default_rng(seed)
    while True:
        scene = _scene(rng, frames)
        if held_out is not None and scene.held_out != held_out:
            continue
        ground, places = paper(scene.background, rng), _places(scene, rng, frames)
        if places is not None:
            return Clip(paint(scene, ground, places, sprites, range(frames)), caption(scene), scene, places)


def questions(clip: Clip) -> list[Question]:
    """The questions of a clip that nobody can answer who missed what is brief in it, and one of an absent thing.

    Of a thing that crosses, which way it goes: to see only once that it is there is not enough. Of one that stands,
    what else there is to ask, and where it is at the end if it is seen to the end; not that it goes nowhere, which
    `tiny-onevision` was trained to tell from more than four frames.
    """
    brief = clip.scene.actors[-1]
    found = moving_questions.questions(clip)
    before = [found[0], *found]  # a thing that is there is asked for before one that is not
    return [
        question
        for question, previous in zip(found, before, strict=False)
        if _is_about(previous if question.answer == "no" else question, brief, len(clip.frames))
    ]


def choose(clip: Clip, rng: np.random.Generator, count: int) -> list[Question]:
    """`count` of these questions, as :func:`moving_questions.choose` draws them."""
    return moving_questions.draw(questions(clip), rng, count)


def _is_about(question: Question, brief: Actor, frames: int) -> bool:
    asked = f" {brief.name}" in question.text
    if brief.moving:
        return (question.kind == "motion" and asked) or (question.kind == "mover" and question.answer == brief.name)
    if question.kind == "end":
        return asked and brief.gone == frames
    return question.kind in ("count", "last", "order") or (question.kind == "presence" and asked)


def _scene(rng: np.random.Generator, frames: int) -> MovingScene:
    """Things that last, and as the last one the brief thing."""
    lasting = int(rng.integers(1, MOST_LASTING, endpoint=True))
    *others, name = rng.choice(NAMES, lasting + 1, replace=False).tolist()
    actors = [Actor(other, str(rng.choice(list(MOTIONS), p=[0.28] + [0.18] * 4))) for other in others]
    motion = str(rng.choice(list(MOTIONS), p=[0.5] + [0.125] * 4))
    span = int(rng.integers(*(STANDS if motion == "stays" else CROSSES), endpoint=True))
    latest = frames - span
    start = latest if rng.random() < AT_THE_END else int(rng.integers(EARLIEST, latest))
    return MovingScene((*actors, Actor(name, motion, start, start + span)), str(rng.choice(BACKGROUNDS)))


def _places(scene: MovingScene, rng: np.random.Generator, frames: int) -> np.ndarray | None:
    """Where each thing is in each frame, none on top of another in a frame that shows both; None without room."""
    seen = np.array([[actor.is_seen(time) for time in range(frames)] for actor in scene.actors])
    first, second = np.triu_indices(len(scene.actors), 1)
    for _ in range(TRIES):
        places = np.stack([_path(actor, rng, frames) for actor in scene.actors])
        if (apart(places[first], places[second]) | ~(seen[first] & seen[second])).all():
            return places
    return None


def _path(actor: Actor, rng: np.random.Generator, frames: int) -> np.ndarray:
    """Top and left of a thing in each frame `[frames, 2]`: a brief one crosses from edge to edge while it is seen."""
    if actor.gone is None:
        distance, times = ONEVISION.frames - 1, np.linspace(0, 1, frames)
    else:
        distance, times = FREE, ((np.arange(frames) - actor.appears) / (actor.gone - actor.appears - 1)).clip(0, 1)
    travel = np.array(MOTIONS[actor.motion]) * (distance * times).astype(int)[:, None]
    free = (FREE - np.abs(travel[-1])) // STEP
    return rng.integers(0, free + 1) * STEP - travel[-1].clip(max=0) + travel
