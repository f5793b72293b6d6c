"""Small figures of Matplotlib as pictures, without a window or global state."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image


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
