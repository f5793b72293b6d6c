"""LightPipeline: the regions of a page by a small layout detector and a small recogniser of lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmaccel.errors import SettingError

from .regions import Region, crop, pages_of

LAYOUT_SIDE = 800  # pixels of a page, as PP-DocLayoutV3 was trained
HEIGHT, WIDTH, WIDEST = 48, 320, 3200  # pixels of a line, as PP-OCRv5 was trained
DARKER = 40  # of 255 levels between ink and paper
MARKS = {"doc_title": "# ", "paragraph_title": "## "}  # Markdown by the detector's own names of kinds


class LightPipeline:
    """Regions for `vlm.DocumentDraft`: boxes from a layout detector, and lines of text from a recogniser.

    Made for the installed `PPDocLayoutV3ForObjectDetection` and `PPOCRV5MobileRecForTextRecognition`, of a few million
    parameters each; works without torchvision. Regions come in the order in which the detector says they are read.

    Parameters
    ----------
    layout
        The detector; `logits`, `pred_boxes` and `order_logits` of its output are used.
    recognizer
        The recogniser; its `last_hidden_state` are the chances `[B, T, V]` of characters.
    characters
        What each of the V outputs means, as `character_list` of its image processor; the first is the blank.
    threshold
        Least chance of a region; default 0.5, as in transformers.

    Raises
    ------
    SettingError
        If the characters do not fit the recogniser, or a page is no picture.

    Examples
    --------
    >>> pipeline = LightPipeline(layout, recognizer, processor.character_list)  # doctest: +SKIP
    >>> fast.generate(**inputs, regions=pipeline, page=picture, processor=processor)  # doctest: +SKIP
    """

    def __init__(self, layout: Any, recognizer: Any, characters: Sequence[str], threshold: float = 0.5) -> None:
        outputs = recognizer.config.head_out_channels
        if len(characters) != outputs:
            raise SettingError(
                f"characters={len(characters)} of them, but the recogniser has {outputs} outputs:"
                " give character_list of its image processor"
            )
        self.layout, self.recognizer, self.characters, self.threshold = layout, recognizer, characters, threshold

    @torch.no_grad()
    def __call__(self, page: Any) -> list[Region]:
        """The regions of a page, PIL or uint8 `[H, W, 3]`."""
        (picture,) = pages_of(page)
        regions = []
        for box, kind in self._boxes(picture):
            found = crop(picture, Region(box, ""))
            lines = [] if found is None else lines_of(found)
            text = "\n".join(filter(None, map(self._read, lines)))
            regions.append(Region(box, MARKS.get(kind, "") + text if text else ""))
        return regions

    def _boxes(self, page: Image.Image) -> list[tuple[tuple[float, float, float, float], str]]:
        """Boxes in pixels and their kinds, in reading order."""
        small = page.resize((LAYOUT_SIDE, LAYOUT_SIDE), Image.Resampling.BICUBIC)
        output = self.layout(_pixels(small).to(self.layout.device, self.layout.dtype) / 255)
        chances, kinds = output.logits[0].float().sigmoid().max(-1)
        middle, size = output.pred_boxes[0].float().chunk(2, -1)
        scale = torch.tensor([page.width, page.height] * 2)
        boxes = torch.cat([middle - size / 2, middle + size / 2], -1).cpu() * scale
        kept = [int(i) for i in reading_order(output.order_logits[0].float()) if chances[i] >= self.threshold]
        names = self.layout.config.id2label
        return [(tuple(boxes[i].tolist()), names.get(int(kinds[i]), "")) for i in kept]

    def _read(self, line: Image.Image) -> str:
        """The text of one line."""
        width = min(WIDEST, math.ceil(HEIGHT * line.width / line.height))
        pixels = _pixels(line.resize((width, HEIGHT), Image.Resampling.BILINEAR)) / 127.5 - 1
        pixels = torch.nn.functional.pad(pixels, (0, max(0, WIDTH - width)))
        chances = self.recognizer(pixels.to(self.recognizer.device, self.recognizer.dtype)).last_hidden_state[0]
        best = torch.unique_consecutive(chances.argmax(-1)).tolist()
        return "".join(self.characters[i] for i in best if i).strip()


def reading_order(logits: torch.Tensor) -> torch.Tensor:
    """Numbers of the regions as they are read, by logits `[N, N]` above the diagonal that one comes before another.

    Examples
    --------
    >>> reading_order(torch.tensor([[0.0, -9.0, 9.0], [0.0, 0.0, 9.0], [0.0, 0.0, 0.0]])).tolist()
    [1, 0, 2]
    """
    before = logits.sigmoid().triu(1)
    return (before + (1 - before.T).tril(-1)).sum(0).argsort()


def lines_of(picture: Image.Image) -> list[Image.Image]:
    """The lines of a region from top to bottom, parted where no ink is across all of it.

    Examples
    --------
    >>> picture = Image.new("L", (20, 30), "white")
    >>> picture.paste(0, (2, 3, 18, 9)), picture.paste(0, (2, 14, 18, 24))
    (None, None)
    >>> [line.size for line in lines_of(picture)]
    [(20, 8), (20, 12)]
    """
    levels = np.asarray(picture.convert("L"), np.int16)
    inked = (np.abs(levels - np.median(levels)) > DARKER).any(1)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], inked.astype(np.int8), [0]])))
    return [
        picture.crop((0, max(0, top - 1), picture.width, min(picture.height, bottom + 1)))
        for top, bottom in edges.reshape(-1, 2).tolist()
    ]


def _pixels(picture: Image.Image) -> torch.Tensor:
    """Float `[1, 3, H, W]` from 0 to 255."""
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)[None].float()
