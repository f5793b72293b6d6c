"""Small figures of Matplotlib as pictures, without a window or global state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def figure(columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure of so many inches, and its axes side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(1, columns)


def drawn(made: Any) -> Image.Image:
    """The figure as a picture."""
    made.canvas.draw()
    return Image.fromarray(np.asarray(made.canvas.buffer_rgba())).convert("RGB")


def beside(picture: Any, settled: Any, title: str) -> Image.Image:
    """A picture, and beside it, under a title, the numbers `[rows, columns]` of when each part of it was settled."""
    made, (left, right) = figure(2, 7.6, 3.4)
    left.imshow(picture)
    left.set_title("picture", fontsize=10)
    drawing = right.imshow(settled, cmap="viridis")
    right.set_title(title, fontsize=10)
    made.colorbar(drawing, ax=right, shrink=0.85)
    for axes in (left, right):
        axes.set(xticks=[], yticks=[])
    return drawn(made)


def noted(speedups: Mapping[str, str]) -> PngInfo:
    """The speed-ups that a picture tells, for its file."""
    found = PngInfo()
    found.add_text("speed-ups", " ".join(speedups.values()))
    return found
