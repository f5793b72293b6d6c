"""Questions about clips of the moving world whose answers follow from the clip's facts.

Only what has one right answer is asked: where a thing is only if it is clearly in a corner, what moves up only if no
two things do.

Example
-------
>>> from mmaccel.zoo.worlds import moving_world
>>> clip = moving_world.draw_clip(7)
>>> [(q.text, q.answer) for q in questions(clip) if q.kind == "motion"]
[('which way does the banana go?', 'nowhere'), ('which way does the christmas tree go?', 'up')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .emoji_world import IMAGE_SIZE
from .moving_world import BACKGROUNDS, MOTIONS, NAMES, SPRITE_SIZE, Actor, Clip

COUNTS = ("one", "two", "three")
NOTHING = "nothing"
WAYS = {motion: motion.removeprefix("moves ") if motion != "stays" else "nowhere" for motion in MOTIONS}
CLEAR = 6  # pixels off the middle of the picture that make a corner clear
ANSWERS = (*NAMES, *BACKGROUNDS, *WAYS.values(), *COUNTS, NOTHING, "yes", "no", "then", "top", "bottom")


@dataclass(frozen=True)
class Question:
    """A question with its answer, and which kind of question it is."""

    kind: str
    text: str
    answer: str


def questions(clip: Clip) -> list[Question]:
    """Every question that the facts of a clip answer, in a fixed order."""
    return [Question(kind, text, answer) for kind, ask in KINDS.items() for text, answer in ask(clip)]


def choose(clip: Clip, rng: np.random.Generator, count: int) -> list[Question]:
    """`count` questions about a clip (or all, if there are fewer), in random order, the kinds in turn."""
    return draw(questions(clip), rng, count)


def draw(pool: list[Question], rng: np.random.Generator, count: int) -> list[Question]:
    """`count` of some questions (or all, if there are fewer), in random order, the kinds in turn."""
    drawn = [pool[i] for i in rng.permutation(len(pool))]
    lot = dict(zip(KINDS, rng.random(len(KINDS)), strict=True))
    seen = dict.fromkeys(KINDS, 0)
    turns = []
    for question in drawn:
        turns.append(seen[question.kind] + lot[question.kind])
        seen[question.kind] += 1
    return [drawn[i] for i in np.argsort(turns)[:count]]


def corner(place: np.ndarray) -> str | None:
    """The corner in which a box with this top and left clearly is."""
    row, column = place + (SPRITE_SIZE - IMAGE_SIZE) // 2
    if min(abs(row), abs(column)) < CLEAR:
        return None
    return f"{'top' if row < 0 else 'bottom'} {'left' if column < 0 else 'right'}"


def _motion(clip: Clip) -> Iterator[tuple[str, str]]:
    for actor in clip.scene.actors:
        yield f"which way does the {actor.name} go?", WAYS[actor.motion]


def _mover(clip: Clip) -> Iterator[tuple[str, str]]:
    """Each way that exactly one thing takes; for half of the clips, also one that none takes."""
    names = {m: [actor.name for actor in clip.scene.actors if actor.motion == m] for m in MOTIONS}
    for motion, takers in names.items():
        if len(takers) == 1:
            yield f"what {motion}?", takers[0]
    free = [motion for motion, takers in names.items() if not takers]
    lot = int(clip.places.sum())
    if lot % 2:
        yield f"what {free[lot // 2 % len(free)]}?", NOTHING


def _count(clip: Clip) -> Iterator[tuple[str, str]]:
    yield "how many things are there?", COUNTS[len(clip.scene.actors) - 1]


def _background(clip: Clip) -> Iterator[tuple[str, str]]:
    yield "what color is the background?", clip.scene.background


def _start(clip: Clip) -> Iterator[tuple[str, str]]:
    """Only of things that are there from the start."""
    for actor, path in zip(clip.scene.actors, clip.places, strict=True):
        where = corner(path[0])
        if where and not actor.appears:
            yield f"where is the {actor.name} at the start?", where


def _end(clip: Clip) -> Iterator[tuple[str, str]]:
    for actor, path in zip(clip.scene.actors, clip.places, strict=True):
        where = corner(path[-1])
        if where:
            yield f"where is the {actor.name} at the end?", where


def _first(clip: Clip) -> Iterator[tuple[str, str]]:
    early = [actor for actor in clip.scene.actors if not actor.appears]
    if len(clip.scene.actors) > 1 and len(early) == 1:
        yield "what comes first?", early[0].name


def _last(clip: Clip) -> Iterator[tuple[str, str]]:
    latest = _by_appearance(clip)[-1]
    if latest.appears:
        yield "what comes last?", latest.name


def _order(clip: Clip) -> Iterator[tuple[str, str]]:
    actors = _by_appearance(clip)
    if len(actors) > 1 and actors[1].appears:
        yield "in which order do things come?", " then ".join(actor.name for actor in actors)


def _presence(clip: Clip) -> Iterator[tuple[str, str]]:
    """As many that are there as are not, chosen by the clip."""
    names = [actor.name for actor in clip.scene.actors]
    others = [name for name in NAMES if name not in names]
    first = int(clip.places.sum())
    for i, name in enumerate(names):
        yield f"is there a {name}?", "yes"
        yield f"is there a {others[(first + 5 * i) % len(others)]}?", "no"


def _by_appearance(clip: Clip) -> list[Actor]:
    return sorted(clip.scene.actors, key=lambda actor: actor.appears)


KINDS: dict[str, Callable[[Clip], Iterator[tuple[str, str]]]] = {
    "motion": _motion,
    "mover": _mover,
    "count": _count,
    "background": _background,
    "start": _start,
    "end": _end,
    "first": _first,
    "last": _last,
    "order": _order,
    "presence": _presence,
}
