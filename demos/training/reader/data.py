"""What `tiny-reader` is trained on: pages and lone regions, what they say, and where each letter of it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmaccel.zoo.worlds import page_world as world

from ..recipe import IGNORED


@dataclass
class Batch:
    """Pictures with what they say.

    Attributes
    ----------
    pictures : uint8 `[B, H, W, 3]`
    tokens : int64 `[B, N]`
        The text and the end of it, again and again.
    labels : int64 `[B, N]`
        The same, `IGNORED` behind the first end.
    patches : int64 `[B, N]`
        The patch that shows each letter, counted in reading order; `IGNORED` for what is not printed.
    letters : int64 `[B, P, 2]`
        Which letter each half of a patch shows, counted from 1; 0 for none.
    """

    pictures: torch.Tensor
    tokens: torch.Tensor
    labels: torch.Tensor
    patches: torch.Tensor
    letters: torch.Tensor


def draw(
    tokenizer: Any,
    glyphs: np.ndarray,
    seed: list[int],
    count: int,
    rows: int = world.ROWS,
    columns: int = world.COLUMNS,
    alone: bool = False,
) -> Batch:
    """A batch of pages of one size, a pure function of its arguments."""
    pages = [world.draw_page([*seed, i], glyphs, rows, columns, alone) for i in range(count)]
    told = [_told(tokenizer, page, columns // 2) for page in pages]
    longest = max(len(ids) for ids, _ in told) + 1
    end = tokenizer.eos_token_id
    tokens, labels, patches = (torch.full((count, longest), value) for value in (end, IGNORED, IGNORED))
    for i, (ids, places) in enumerate(told):
        tokens[i, : len(ids)] = torch.tensor(ids)
        labels[i, : len(ids) + 1] = tokens[i, : len(ids) + 1]
        patches[i, : len(ids)] = torch.tensor(places)
    pictures = torch.from_numpy(np.stack([page.picture for page in pages]))
    letters = torch.from_numpy(np.stack([_letters(page, rows, columns) for page in pages]))
    return Batch(pictures, tokens, labels, patches, letters.reshape(count, -1, 2))


def _told(tokenizer: Any, page: world.Page, across: int) -> tuple[list[int], list[int]]:
    """The tokens of a page, and the patch of each."""
    ids: list[int] = []
    patches: list[int] = []
    for text, place in page.pieces:
        new = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += new
        if place is None:
            patches += [IGNORED] * len(new)
        else:
            patches += [place[0] * across + (place[1] + i) // 2 for i in range(len(new))]
    return ids, patches


def _letters(page: world.Page, rows: int, columns: int) -> np.ndarray:
    found = np.zeros((rows, columns), np.int64)
    for text, place in page.pieces:
        if place:
            for i, letter in enumerate(text):
                found[place[0], place[1] + i] = 0 if letter == " " else 1 + world.CHARACTERS.index(letter)
    for row, column in (place for region in page.regions for place in region.bullets):
        found[row, column] = 1 + world.CHARACTERS.index("•")
    return found
