"""A small world of captioned pictures: one Noto emoji on textured paper.

The world has what an autoregressive image model has to learn (a thing, its size, its place, a
background, light) and real uncertainty that no caption tells (hue, brightness, paper grain, a few
pixels of position), so that a model trained on it has distributions instead of a lookup table.
Glyphs come from the font `Noto Color Emoji` (Debian package `fonts-noto-color-emoji`, SIL OFL 1.1),
names from the `emoji` package.
"""

from __future__ import annotations

import colorsys
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

FONT_PATHS = (
    "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf",
    "/usr/share/fonts/noto/NotoColorEmoji.ttf",
    "/usr/share/fonts/google-noto-emoji/NotoColorEmoji.ttf",
)

# fmt: off
EMOJI = tuple(
    "❤🧡💛💚💙💜🤎🖤🤍🔴🟠🟡🟢🔵🟣🟤⚫⚪🍕🍔🍟🌭🍿🍩🍪🎂🍰🧁🍫🍬🍭🍎🍏🍐🍊🍋🍌🍉🍇🍓🍒🍑🍍🥝🍅🍆🥑🥕🌽🍄🍞🧀🥚🍳🥞🥓🍗🍦🍣🍙☕🍵🍺🍷"
    "🚀✈🚁🚗🚕🚌🚑🚒🚜🚲🛵🚂⛵🚢⚓🏠🏰⛺🌋🌈⭐🌟☀🌙☁⚡❄🔥💧🌊🎄🌲🌳🌴🌵🌹🌻🌷🌸🍀🍁"
    "🐶🐱🐭🐹🐰🦊🐻🐼🐨🐯🦁🐮🐷🐸🐵🐔🐧🐦🐤🦉🐴🦄🐝🐛🦋🐌🐞🐢🐍🐙🦀🐠🐟🐬🐳🐘🦒🐪🐑🐓🦜"
    "😀😎😂😍😢😡😱😴🤖👻👽💀🎃🤡👑💎💍🎩👓👟👕👗🎒☂🎈🎁🎀🏆⚽🏀🏈🎾🎱🎯🎲🎸🎺🎹🥁🎨🎬📷📺💻📱☎⏰⌛💡🔑🔒🔨🔧✂📎📌📚📕📗📘✏💰💣🧲🔔🕯🚦🛑🧸🪁🛸"
)
# fmt: on

# The names that the last stage of training and the shipped model keep to: few enough to be drawn well.
FEATURED = tuple(
    """red heart, orange heart, yellow heart, green heart, blue heart, purple heart, pizza, hamburger, french fries,
    doughnut, cookie, birthday cake, red apple, pear, lemon, banana, watermelon, strawberry, cherries, avocado,
    carrot, mushroom, soft ice cream, beer mug, rocket, airplane, automobile, bus, sailboat, house, rainbow, star,
    sun, crescent moon, cloud, high voltage, fire, droplet, christmas tree, palm tree, cactus, rose, sunflower,
    tulip, four leaf clover, dog face, cat face, mouse face, rabbit face, fox, bear, panda, koala, lion, pig face,
    frog, monkey face, penguin, owl, unicorn, turtle, octopus, crab, fish, dolphin, grinning face,
    smiling face with sunglasses, smiling face with heart-eyes, crying face, robot, ghost, alien, skull, crown,
    gem stone, balloon, soccer ball, basketball, guitar, camera, light bulb, key, green book, bomb, teddy bear,
    alarm clock, umbrella, trophy""".replace("\n", " ").split(",")
)
FEATURED = tuple(" ".join(name.split()) for name in FEATURED)

# hue range in degrees, saturation range, value range
BACKGROUNDS = {
    "white": ((30, 60), (0.00, 0.05), (0.93, 0.99)),
    "gray": ((200, 240), (0.02, 0.08), (0.50, 0.66)),
    "yellow": ((46, 54), (0.45, 0.60), (0.93, 0.99)),
    "orange": ((24, 32), (0.50, 0.65), (0.92, 0.98)),
    "pink": ((330, 345), (0.25, 0.38), (0.94, 0.99)),
    "purple": ((262, 276), (0.32, 0.45), (0.62, 0.76)),
    "blue": ((203, 216), (0.45, 0.60), (0.70, 0.86)),
    "green": ((105, 130), (0.35, 0.50), (0.60, 0.76)),
}
PLACES = ("center", "top left", "top right", "bottom left", "bottom right")
SIZES = {"small": 32, "big": 52}
IMAGE_SIZE = 64
GRID_STEP = 4  # one image token covers 4 x 4 pixels, and sprites lie on that grid
RAMP = (0.04, -0.06)  # light from top to bottom, added to the colour of the paper
GRAIN, TURN = 0.022, 0.06  # deviations of the paper's grain, and of hue in radians
GAIN = (0.94, 1.06)  # brightness of a thing


def kept_out(facts: str) -> bool:
    """Whether a scene of these facts is never trained on, as about one in forty."""
    return hashlib.sha256(facts.encode()).digest()[0] < 6


@dataclass(frozen=True)
class EmojiScene:
    """What a caption can tell about one picture."""

    name: str
    size: str
    background: str
    place: str

    @property
    def held_out(self) -> bool:
        """About one scene in forty is never trained on."""
        return kept_out("Scene(" + repr(self).partition("(")[2])  # whatever the class is called


@functools.cache
def glyphs() -> dict[str, str]:
    """Name of each emoji, in words, to its character."""
    from emoji import EMOJI_DATA

    table = {}
    for character in EMOJI:
        entry = EMOJI_DATA.get(character) or EMOJI_DATA[character + "\ufe0f"]
        table[entry["en"].strip(":").replace("_", " ").lower()] = character
    return table


def names() -> tuple[str, ...]:
    """All names of things, in a fixed order."""
    return tuple(glyphs())


def random_scene(rng: np.random.Generator, things: tuple[str, ...] | None = None) -> EmojiScene:
    """One scene, uniform over names (all, or `things`), sizes, backgrounds and (for small things) places."""
    size = str(rng.choice(list(SIZES)))
    return EmojiScene(
        name=str(rng.choice(things or names())),
        size=size,
        background=str(rng.choice(list(BACKGROUNDS))),
        place=str(rng.choice(PLACES)) if size == "small" else "center",
    )


def draw_scene(rng: np.random.Generator, held_out: bool, things: tuple[str, ...] | None = None) -> EmojiScene:
    """As :func:`random_scene`, one to train on or, `held_out`, one never trained on."""
    while (scene := random_scene(rng, things)).held_out != held_out:
        pass
    return scene


def caption(scene: EmojiScene, rng: np.random.Generator | None = None) -> str:
    """The caption of a scene; with `rng`, some of what is known is left out, as people do."""

    def told(probability: float) -> bool:
        return rng is None or bool(rng.random() < probability)

    size, background = told(0.7), told(0.8)
    return worded(scene, size, background, scene.size == "small" and told(0.8))


def worded(scene: EmojiScene, size: bool, background: bool, place: bool) -> str:
    """The caption of a scene that tells these of its facts."""
    words = f"{scene.size} {scene.name}" if size else scene.name
    if background:
        words += f" on {scene.background}"
    if scene.size == "small" and place:
        words += f", {scene.place}"
    return words


def render(scene: EmojiScene, rng: np.random.Generator) -> np.ndarray:
    """Draw the scene: uint8 array `[IMAGE_SIZE, IMAGE_SIZE, 3]`."""
    canvas = paper(scene.background, rng)
    tinted = _tinted(sprite(scene.name, SIZES[scene.size]), rng)
    top, left = _corner(scene, rng)
    paste(canvas, tinted, top, left)
    return (canvas.clip(0, 1) * 255).round().astype(np.uint8)


def paste(canvas: np.ndarray, picture: np.ndarray, top: int, left: int) -> None:
    """Lay a picture with alpha `[h, w, 4]` over a canvas `[H, W, 3]`, in place."""
    height, width = picture.shape[:2]
    alpha = picture[..., 3:]
    window = canvas[top : top + height, left : left + width]
    canvas[top : top + height, left : left + width] = window * (1 - alpha) + picture[..., :3] * alpha


def paper(background: str, rng: np.random.Generator) -> np.ndarray:
    """Textured paper of one of the backgrounds: float array `[IMAGE_SIZE, IMAGE_SIZE, 3]`, mostly in [0, 1]."""
    (h0, h1), (s0, s1), (v0, v1) = BACKGROUNDS[background]
    hue, saturation, value = rng.uniform(h0, h1), rng.uniform(s0, s1), rng.uniform(v0, v1)
    color = np.array(colorsys.hsv_to_rgb(hue / 360, saturation, value))
    ramp = np.linspace(*RAMP, IMAGE_SIZE)[:, None, None]
    cells = IMAGE_SIZE // GRID_STEP
    return color + ramp + smooth(rng.normal(0, GRAIN, (cells, cells)))[..., None]


def smooth(cells: np.ndarray) -> np.ndarray:
    """A value for each cell of the grid made a smooth picture `[IMAGE_SIZE, IMAGE_SIZE]`."""
    grain = cells.repeat(GRID_STEP, 0).repeat(GRID_STEP, 1)
    small = Image.fromarray(grain.astype(np.float32)).resize((2 * len(cells),) * 2, Image.Resampling.BOX)
    return np.asarray(small.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC))


def _corner(scene: EmojiScene, rng: np.random.Generator) -> tuple[int, int]:
    rows, columns = corners(scene)
    top, left = int(rng.integers(rows.start, rows.stop)), int(rng.integers(columns.start, columns.stop))
    return top * GRID_STEP, left * GRID_STEP


def corners(scene: EmojiScene) -> tuple[range, range]:
    """Rows and columns of the grid that the upper left corner of the thing may have."""
    free = (IMAGE_SIZE - SIZES[scene.size]) // GRID_STEP
    if scene.size == "big":
        return range(1, free), range(1, free)
    row = {"t": 1, "b": free - 2}.get(scene.place[0], free // 2)
    column = {"left": 1, "right": free - 2}.get(scene.place.split()[-1], free // 2)
    return range(row - 1, row + 2), range(column - 1, column + 2)


def _tinted(sprite: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Small untold changes of hue and brightness."""
    angle, gain = rng.normal(0, TURN), rng.uniform(*GAIN)
    red, green, blue = sprite[..., 0], sprite[..., 1], sprite[..., 2]
    grey = (red + green + blue) / 3
    turned = [
        grey + (c - grey) * np.cos(angle) + (d - e) / np.sqrt(3) * np.sin(angle)
        for c, d, e in ((red, blue, green), (green, red, blue), (blue, green, red))
    ]
    return np.stack([*(channel * gain for channel in turned), sprite[..., 3]], -1).clip(0, 1)


@functools.cache
def sprite(name: str, size: int) -> np.ndarray:
    """An emoji with alpha: float array `[size, size, 4]` in [0, 1]; shared, not to be written to."""
    glyph = Image.new("RGBA", (160, 160), (0, 0, 0, 0))
    ImageDraw.Draw(glyph).text((10, 10), glyphs()[name], font=font(), embedded_color=True)
    glyph = glyph.crop(glyph.getbbox())
    side = max(glyph.size)
    square = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    square.paste(glyph, ((side - glyph.width) // 2, (side - glyph.height) // 2))
    # Premultiply before resizing, or the transparent black bleeds into the rim.
    pixels = np.asarray(square, np.float32) / 255
    channels = [pixels[..., i] * pixels[..., 3] for i in range(3)] + [pixels[..., 3]]
    resized = [np.asarray(Image.fromarray(c).resize((size, size), Image.Resampling.LANCZOS)) for c in channels]
    alpha = resized[3].clip(0, 1)
    rgb = np.stack(resized[:3], -1) / np.maximum(alpha, 1e-3)[..., None]
    return np.concatenate([rgb.clip(0, 1), alpha[..., None]], -1)


@functools.cache
def font() -> ImageFont.FreeTypeFont:
    """The font that every thing of the world is drawn with; raises a FileNotFoundError that says how to get it."""
    for path in FONT_PATHS:
        if Path(path).is_file():
            return ImageFont.truetype(path, 109)  # the only size this bitmap font has
    raise FileNotFoundError(
        "the font NotoColorEmoji.ttf is not installed: run `apt-get install fonts-noto-color-emoji`"
    )
