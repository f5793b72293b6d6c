"""Which tokens of a picture each pass of an image model computed, seen from outside, and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmaccel.image.decoding.layout import Layout
from mmaccel.image.generation import language_model

from ...pages.figures import drawn, figure
from ..runs import Run


class Passes:
    """The positions that each pass fed to the language model, read off a hook on one model instance.

    Works for every method alike, and for runs of one picture; the hook also ends the run when its visitor left.

    Parameters
    ----------
    tokens
        Tokens of a picture.

    Attributes
    ----------
    passes
        Positions in the picture, one tensor for each pass; the first pass is the prompt's, and of no position in it.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.passes: list[torch.Tensor] = []
        self._prompt: int | None = None
        self._times: list[float] = []  # when each pass began, and when the last one ended
        self._furthest = 0

    @contextmanager
    def watch(self, model: Any, run: Run) -> Iterator[None]:
        """See the passes of a model inside the block, and tell how far it is."""

        def see(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._note(kwargs.get("position_ids"))
            run.tell(max(len(self._times), self._furthest), self.tokens)

        handle = language_model(model).register_forward_pre_hook(see, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
            self._times.append(time.perf_counter())

    def _note(self, positions: torch.Tensor | None) -> None:
        """A pass; without positions, as in a plain run, it is one more token."""
        if positions is not None and positions.ndim == 2:
            row = positions[0].cpu()
            if int(row[0]) == 0:  # a new prompt: what came before measured how wide a window may be
                self._prompt, self.passes, self._times, self._furthest = int(row[-1]) + 1, [row[:0]], [], 0
            elif self._prompt is not None:
                self.passes.append(row - self._prompt)
                self._furthest = max(self._furthest, int(self.passes[-1][-1]) + 1)
        self._times.append(time.perf_counter())

    def seconds(self, layout: Layout) -> list[float] | None:
        """When each token of the largest grid was settled, row by row, counted from the start of the run."""
        began, ends = self._times[0], np.array(self._times[1:])
        settled = np.arange(layout.length) if not self.passes else self._settled(layout)[0] - 1
        if settled.max() >= len(ends):  # plain decoding of another kind, which makes other passes
            return None
        return [float(second) for second in np.concatenate([(ends - began)[settled[row]] for row in _rows(layout)])]

    def maps(self, layout: Layout) -> tuple[np.ndarray, np.ndarray] | None:
        """For each token of the largest grid, the pass that settled it and how many computed it, `[rows, columns]`.

        None where passes told no positions.
        """
        if not self.passes:
            return None
        last, times = self._settled(layout)
        return np.stack([last[row] for row in _rows(layout)]), np.stack([times[row] for row in _rows(layout)])

    def _settled(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """The last pass of each token, counted from 1, and how many there were."""
        last, times = np.zeros(layout.length, int), np.zeros(layout.length, int)
        for number, positions in enumerate(self.passes, 1):
            inside = positions[(positions >= 0) & (positions < layout.length)].numpy()
            last[inside] = number
            times[inside] += 1
        last[times == 0] = len(self.passes)  # the last token is nobody's context, and so never fed again
        return last, times

    def picture(self, layout: Layout) -> Image.Image | None:
        """Both maps side by side, None where there are none."""
        found = self.maps(layout)
        if found is None:
            return None
        made, both = figure(2, 8, 3.6)
        titles = (f"settled by pass, of {len(self.passes)}", "times computed")
        for axes, values, title in zip(both, found, titles, strict=True):
            colours = axes.imshow(values, cmap="viridis" if title == titles[0] else "magma", vmin=0)
            axes.set(xticks=[], yticks=[])
            axes.set_title(title, fontsize=11)
            made.colorbar(colours, ax=axes, shrink=0.85)
        return drawn(made)


def _rows(layout: Layout) -> list[slice]:
    lines = [line for line in layout.lines if line.length == layout.columns]
    return [slice(line.start, line.start + line.length) for line in lines]
