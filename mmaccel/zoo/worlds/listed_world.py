"""A small world of pictures to be listed: five to twelve Noto emoji, each on a card, in a grid of four rows.

What a picture shows is one text, in reading order, so that a long answer is right or wrong. Where a word of it stands
depends on how many things come before and on how many words name them: who writes all words at once has to count.

Example
-------
>>> listing = draw_listing(7)
>>> listing.text[:74]
'row one column one sunflower on gray row one column three mushroom on blue'
>>> listing.picture.shape
(64, 64, 3)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from .emoji_world import IMAGE_SIZE, kept_out, paper, paste, sprite
from .moving_world import BACKGROUNDS, NAMES, SPRITE_SIZE

NUMBERS = ("one", "two", "three", "four")
SIDE = len(NUMBERS)
CELL = IMAGE_SIZE // SIDE
FEWEST, MOST = 5, 12
QUESTION = "list all things"
WORDS = ("list", "all", "row", "column", "on", *NUMBERS)


@dataclass(frozen=True)
class Card:
    """A thing on a card of one color, in a cell of the grid."""

    row: int
    column: int
    name: str
    color: str

    def __str__(self) -> str:
        return f"row {NUMBERS[self.row]} column {NUMBERS[self.column]} {self.name} on {self.color}"


@dataclass(frozen=True, eq=False)
class Listing:
    """One drawn picture, uint8 `[IMAGE_SIZE, IMAGE_SIZE, 3]`, and its cards in reading order."""

    picture: np.ndarray
    cards: tuple[Card, ...]

    @property
    def text(self) -> str:
        """The only right answer to :data:`QUESTION`."""
        return " ".join(map(str, self.cards))


def draw_listing(
    seed: int | list[int], held_out: bool = False, sprites: Callable[[str, int], np.ndarray] = sprite
) -> Listing:
    """One picture, a pure function of its arguments; one in forty is held out, and never trained on.

    `sprites` gives a thing's picture `[size, size, 4]` in [0, 1] by its name and size.
    """
    rng = np.random.default_rng(seed)
    cards = _cards(rng)
    while kept_out(" ".join(map(str, cards))) != held_out:
        cards = _cards(rng)
    papers = {color: paper(color, rng) for color in BACKGROUNDS}
    picture = papers[str(rng.choice(BACKGROUNDS))].copy()
    for card in cards:
        window = np.s_[card.row * CELL : (card.row + 1) * CELL, card.column * CELL : (card.column + 1) * CELL]
        picture[window] = papers[card.color][window]
        paste(picture, _small(sprites(card.name, SPRITE_SIZE)), card.row * CELL, card.column * CELL)
    return Listing((picture.clip(0, 1) * 255).round().astype(np.uint8), cards)


def _cards(rng: np.random.Generator) -> tuple[Card, ...]:
    cells = np.sort(rng.choice(SIDE**2, rng.integers(FEWEST, MOST + 1), replace=False))
    return tuple(
        Card(int(cell) // SIDE, int(cell) % SIDE, str(rng.choice(NAMES)), str(rng.choice(BACKGROUNDS)))
        for cell in cells
    )


def _small(picture: np.ndarray) -> np.ndarray:
    """A thing's picture at the size of a cell, `[CELL, CELL, 4]`; premultiplied, so that its rim stays clean."""
    alpha = picture[..., 3:]
    channels = np.concatenate([picture[..., :3] * alpha, alpha], -1)
    resized = np.stack([_resized(channel) for channel in np.moveaxis(channels, -1, 0)], -1).clip(0, 1)
    return np.concatenate([resized[..., :3] / np.maximum(resized[..., 3:], 1e-3), resized[..., 3:]], -1).clip(0, 1)


def _resized(channel: np.ndarray) -> np.ndarray:
    image = Image.fromarray(np.ascontiguousarray(channel, np.float32))
    return np.asarray(image.resize((CELL, CELL), Image.Resampling.LANCZOS))
