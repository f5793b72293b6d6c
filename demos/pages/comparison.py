"""The README's picture: the same prompts drawn plainly, exactly and lossily faster, none picked::

python -m mmaccel.demos.pages.comparison docs/comparison.png

The speed-ups are those of the committed rows behind the presets; nothing is timed here. The file notes them, and a test
fails where the rows have others.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

import mmaccel
from mmaccel.files import pictures
from mmaccel.image import generation
from mmaccel.presets import presets_of

from .figures import noted

PROMPTS = ("big red heart on yellow", "smiling face with sunglasses", "rocket on green", "pizza on blue")
PRESETS = {"exact": "equal to the bit", "balanced": "lossy"}
SETTINGS = generation.ImageSettings(seed=1)


def main(output: Path) -> None:
    painter = generation.load("tiny-janus")
    plain = drawn(painter, painter.target)
    cells = [pictures.headed(picture, "plain generate") for picture in plain]
    for name, kind in PRESETS.items():
        preset = presets_of("image", "janus")[name]
        with mmaccel.accelerate(painter.target, preset=name) as fast:
            found = drawn(painter, fast)
        if preset.row["exact"] and any(a.tobytes() != b.tobytes() for a, b in zip(plain, found, strict=True)):
            raise SystemExit(f"preset={name!r} is exact and draws another picture")
        label = f'preset="{name}"   {speedups()[name]}, {kind}'
        cells += [pictures.headed(picture, label) for picture in found]
    sheet = pictures.sheet(cells, len(PROMPTS))
    small = sheet.convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    small.save(output, optimize=True, pnginfo=noted(speedups()))


def speedups() -> dict[str, str]:
    """What each preset was measured to gain."""
    return {name: f"{presets_of('image', 'janus')[name].row['speedup']:.1f}x" for name in PRESETS}


def drawn(painter: generation.Painter, target: object) -> list[Image.Image]:
    """A picture of each prompt, by itself."""
    made = [painter.paint(target, [prompt], SETTINGS).pictures[0] for prompt in PROMPTS]
    return [pictures.enlarged(picture) for picture in made]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
