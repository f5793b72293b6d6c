"""The README's picture: the same prompts drawn plainly, exactly faster and fastest, none picked::

python -m mmaccel.demos.pages.comparison docs/comparison.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

import mmaccel
from mmaccel.files import pictures
from mmaccel.image import SpeculativeJacobi, ZipAR, generation

PROMPTS = ("big red heart on yellow", "smiling face with sunglasses", "rocket on green", "pizza on blue")
METHODS = (None, SpeculativeJacobi(), ZipAR(window=4))


def main(output: Path) -> None:
    painter = generation.load("tiny-janus")
    cells: dict[int, list[Image.Image]] = {}
    for row, method in enumerate(METHODS):
        session = mmaccel.accelerate(painter.target, method) if method else None
        target = session or painter.target
        painter.paint(target, [PROMPTS[0]], generation.ImageSettings())  # warm-up: the first run measures costs
        label = str(method).removeprefix("image.") if method else "plain generate"
        for prompt in PROMPTS:
            painted = painter.paint(target, [prompt], generation.ImageSettings(seed=1), label)
            picture = pictures.enlarged(painted.pictures[0])
            seconds = f"{painted.token_seconds:.2f} s"
            cells.setdefault(row, []).append(pictures.headed(picture, f"{label}   {seconds}"))
        if session:
            session.remove()
    pictures.sheet([cell for row in cells.values() for cell in row], len(PROMPTS)).save(output, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
