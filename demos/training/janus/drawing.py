"""Batches of the emoji world drawn on the device that trains: a GPU draws far more pictures than processes can."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from mmaccel.zoo.worlds import emoji_world as world

from .shape import build_tokenizer, encode_captions

LONGEST = 16  # words of a caption, with its marks
TOLD = (0.7, 0.8, 0.8)  # chances that size, background and place are told, as in `emoji_world.caption`
WAYS = tuple(itertools.product((False, True), repeat=3))


class Drawing:
    """Pictures and captions of the scenes to train on, as :func:`.data.draw` makes them, by the batch.

    Parameters
    ----------
    device
        Where batches are drawn.
    seed
        Of all that is random.
    dropped
        Chance that a caption is left out, for classifier-free guidance.
    """

    def __init__(self, device: str, seed: int, dropped: float) -> None:
        self.random = torch.Generator(device).manual_seed(seed)
        self.device, self.dropped = torch.device(device), dropped
        scenes = [scene for scene in _scenes() if not scene.held_out]
        self.weights = self._tensor([1 / 5 if scene.size == "small" else 1.0 for scene in scenes])
        self.background = self._tensor([list(world.BACKGROUNDS).index(scene.background) for scene in scenes])
        self.colors = self._tensor(list(world.BACKGROUNDS.values()))  # [backgrounds, 3, 2]
        self.corners = self._tensor([[(a.start, a.stop) for a in world.corners(scene)] for scene in scenes])
        pictures = [(name, size) for name in world.FEATURED for size in world.SIZES.values()]
        self.sprites = self._tensor(np.stack([_padded(world.sprite(*picture)) for picture in pictures]))
        self.sprite = self._tensor([pictures.index((scene.name, world.SIZES[scene.size])) for scene in scenes])
        self.text, self.lengths = (self._tensor(rows) for rows in _captions(scenes))
        self.padding = self.text[0, 0, -1]  # stands for a word of a caption that is left out, too
        cells = world.IMAGE_SIZE // world.GRID_STEP
        rows = [world.smooth(np.repeat(row[:, None], cells, 1))[:, 0] for row in np.eye(cells)]
        self.smoothing = self._tensor(np.stack(rows, 1))  # [IMAGE_SIZE, cells]

    def batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Pixels `[count, 3, H, W]` in [-1, 1], token ids `[count, LONGEST]` padded on the right, and their lengths."""
        scene = torch.multinomial(self.weights, count, replacement=True, generator=self.random)
        canvas = self.paper(scene)
        rgb, alpha = self.things(scene)
        pixels = (canvas * (1 - alpha) + rgb * alpha).clamp(0, 1).mul(255).round() / 127.5 - 1
        told = (self._uniform(count, 3) < self._tensor(TOLD)).long()
        way = (told * self._tensor([4, 2, 1])).sum(1)  # its number in `WAYS`
        text, lengths = self.text[scene, way], self.lengths[scene, way]
        place = torch.arange(LONGEST, device=self.device)
        words = (place > 0) & (place < lengths[:, None] - 1) & (self._uniform(count, 1) < self.dropped)
        return pixels, torch.where(words, self.padding, text), lengths

    def paper(self, scene: torch.Tensor) -> torch.Tensor:
        """Textured paper `[B, 3, H, W]` for each scene."""
        lowest, highest = self.colors[self.background[scene]].unbind(-1)
        color = _to_rgb(lowest + self._uniform(*lowest.shape) * (highest - lowest))[..., None, None]
        ramp = torch.linspace(*world.RAMP, world.IMAGE_SIZE, device=self.device)[:, None]
        cells = self.smoothing.shape[1]
        grain = torch.randn(len(scene), cells, cells, device=self.device, generator=self.random) * world.GRAIN
        return color + ramp + (self.smoothing @ grain @ self.smoothing.T)[:, None]

    def things(self, scene: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The thing of each scene at a place that it may have: colours `[B, 3, H, W]` and alpha `[B, 1, H, W]`."""
        first, stop = self.corners[scene].unbind(-1)
        corner = (first + (self._uniform(len(scene), 2) * (stop - first)).floor()) * world.GRID_STEP
        rows, columns = (
            (torch.arange(world.IMAGE_SIZE, device=self.device) - start[:, None]).long() % world.IMAGE_SIZE
            for start in corner.unbind(1)
        )
        sprite = self.sprite[scene][:, None, None]
        red, green, blue, alpha = self.sprites[sprite, rows[:, :, None], columns[:, None]].unbind(-1)
        angle = torch.randn(len(scene), 1, 1, device=self.device, generator=self.random) * world.TURN
        gain = world.GAIN[0] + self._uniform(len(scene), 1, 1) * (world.GAIN[1] - world.GAIN[0])
        grey = (red + green + blue) / 3
        turned = [
            gain * (grey + (c - grey) * angle.cos() + (d - e) / 3**0.5 * angle.sin())
            for c, d, e in ((red, blue, green), (green, red, blue), (blue, green, red))
        ]
        return torch.stack(turned, 1).clamp(0, 1), alpha[:, None]

    def _uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=self.device, generator=self.random)

    def _tensor(self, values: object) -> torch.Tensor:
        made = torch.as_tensor(np.asarray(values))
        return made.to(self.device, torch.float32 if made.is_floating_point() else torch.int64)


def _scenes() -> list[world.EmojiScene]:
    """All scenes of the names that the model ships."""
    every = itertools.product(world.FEATURED, world.SIZES, world.BACKGROUNDS, world.PLACES)
    return [world.EmojiScene(*facts) for facts in every if facts[1] == "small" or facts[3] == "center"]


def _padded(sprite: np.ndarray) -> np.ndarray:
    free = world.IMAGE_SIZE - len(sprite)
    return np.pad(sprite, ((0, free), (0, free), (0, 0)))


def _captions(scenes: list[world.EmojiScene]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids `[scenes, WAYS, LONGEST]` of what may be told of each scene, and their lengths."""
    tokenizer = build_tokenizer()
    captions = [world.worded(scene, *way) for scene in scenes for way in WAYS]
    rows = encode_captions(tokenizer, captions, [False] * len(captions))
    ids = np.array([row + [tokenizer.pad_token_id] * (LONGEST - len(row)) for row in rows])
    lengths = np.array([len(row) for row in rows])
    return ids.reshape(len(scenes), len(WAYS), LONGEST), lengths.reshape(len(scenes), len(WAYS))


def _to_rgb(hsv: torch.Tensor) -> torch.Tensor:
    """Hue in degrees, saturation and value `[B, 3]` to red, green and blue `[B, 3]`."""
    hue, saturation, value = hsv.unbind(1)
    sector = (torch.tensor([5.0, 3.0, 1.0], device=hsv.device) + hue[:, None] / 60) % 6
    share = torch.minimum(sector, 4 - sector).clamp(0, 1)
    return value[:, None] * (1 - saturation[:, None] * share)
