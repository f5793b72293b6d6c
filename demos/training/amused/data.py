"""What `tiny-amused` learns from: pictures as codes of the VQ model of `tiny-janus`, and their scenes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.zoo.worlds import emoji_world as world

from ..checkpoint import write
from ..janus.shape import GRID
from ..recipe import to_pixels

CHUNK = 50  # pictures that are encoded together


class Pool:
    """Many pictures, encoded once.

    Attributes
    ----------
    codes : int16 `[N, GRID, GRID]`
    facts : uint8 `[N, 4]`
        Numbers of name, size, background and place of each scene.
    """

    def __init__(self, codes: torch.Tensor, facts: torch.Tensor) -> None:
        self.codes, self.facts = codes, facts

    def draw(self, seed: list[int], count: int) -> tuple[torch.Tensor, list[str]]:
        """Codes `[count, GRID, GRID]` and captions, which tell more or less; a pure function of the seed."""
        rng = np.random.default_rng(seed)
        rows = torch.from_numpy(rng.integers(len(self.codes), size=count))
        return self.codes[rows].long(), [world.caption(scene_of(row), rng) for row in self.facts[rows].tolist()]


@torch.no_grad()
def pool(path: Path, count: int, seed: int, held_out: bool = False) -> Pool:
    """Draw and encode `count` pictures, and keep them in a file, so that a stopped run goes on."""
    kept = load_file(path) if path.is_file() else {}
    codes, facts = list(kept.get("codes", ())), list(kept.get("facts", ()))
    encode = zoo.load("tiny-janus")[0].model.vqmodel.encode
    for first in tqdm(range(len(codes), count, CHUNK), desc=path.stem, mininterval=5, ncols=100):
        scenes, pictures = _pictures([seed, first], min(CHUNK, count - first), held_out)
        tokens = encode(to_pixels(torch.from_numpy(pictures))).image_tokens
        codes += tokens.view(-1, GRID, GRID).short()
        facts += torch.tensor([numbers_of(scene) for scene in scenes], dtype=torch.uint8)
        if first // CHUNK % 40 == 39 or first + CHUNK >= count:
            write({"codes": torch.stack(codes), "facts": torch.stack(facts)}, path)
    return Pool(torch.stack(codes[:count]), torch.stack(facts[:count]))


def _pictures(seed: list[int], count: int, held_out: bool) -> tuple[list[world.EmojiScene], np.ndarray]:
    rng = np.random.default_rng([*seed, int(held_out)])
    scenes = [world.draw_scene(rng, held_out, world.FEATURED) for _ in range(count)]
    return scenes, np.stack([world.render(scene, rng) for scene in scenes])


def numbers_of(scene: world.EmojiScene) -> list[int]:
    """A scene in numbers."""
    told = (scene.name, scene.size, scene.background, scene.place)
    return [kind.index(word) for kind, word in zip(_KINDS, told, strict=True)]


def scene_of(numbers: list[int]) -> world.EmojiScene:
    """The scene that numbers stand for."""
    return world.EmojiScene(*(kind[number] for kind, number in zip(_KINDS, numbers, strict=True)))


_KINDS = (list(world.FEATURED), list(world.SIZES), list(world.BACKGROUNDS), list(world.PLACES))
