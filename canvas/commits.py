"""Commits: which step committed each token of a run, as numbers and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers.callbacks import PipelineCallback
from PIL import Image, ImageDraw, ImageFont

from mmaccel.errors import SettingError

WIDTH, MARGIN, LINE, SIZE = 900, 16, 34, 17  # pixels; the last one is the height of the letters
COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # first step to last
SHORT = 12  # pixels; no token is drawn narrower


class Commits(PipelineCallback):
    """Watches a run of diffusers' `LLaDA2Pipeline`, plain or accelerated, through the pipeline's own callback.

    Attributes
    ----------
    tokens : int64 `[B, N]`
        Prompt and canvas as far as the run came.
    steps : int64 `[B, N]`
        The step that committed each token, counted from 1; 0 for the prompt, and where nothing was committed.

    Examples
    --------
    >>> commits = canvas.Commits()  # doctest: +SKIP
    >>> fast(**inputs, callback_on_step_end=commits)  # doctest: +SKIP
    >>> commits.picture(pipe.tokenizer).save("commits.png")  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        self.tokens = self.steps = torch.empty(0, 0, dtype=torch.long)
        self._mask: int | None = None  # the token of what is not committed yet, as far as it is known

    @property
    def tensor_inputs(self) -> list[str]:
        """What the pipeline hands over."""
        return ["block_x", "transfer_index", "active_block"]

    def callback_fn(self, pipeline: Any, step_index: int, timesteps: Any, callback_kwargs: dict[str, Any]) -> Any:
        """Note the tokens of a step; nothing is changed."""
        if step_index == 0:
            self._begin()
        self.tokens = callback_kwargs["block_x"].to("cpu", copy=True)
        moved = callback_kwargs["transfer_index"].cpu()
        missing = self.tokens.shape[1] - self.steps.shape[1]
        earlier = self.steps if len(self.steps) else self.steps.new_zeros(len(self.tokens), 0)
        self.steps = torch.nn.functional.pad(earlier, (0, missing))
        block, tokens = (each[:, -moved.shape[1] :] for each in (self.steps, self.tokens))
        waiting = tokens[callback_kwargs["active_block"].cpu() & ~moved]
        if self._mask is None and len(waiting):  # the call may have named a mask that the pipeline does not
            self._mask = int(waiting.mode().values)
        new = moved & (block == 0)
        mask = pipeline.mask_token_id if self._mask is None else self._mask
        if mask is not None:  # of rows that are finished nothing is committed
            new &= tokens != mask
        block[new] = step_index + 1
        return callback_kwargs

    def words(self, tokenizer: Any, row: int = 0) -> list[tuple[str, int]]:
        """The committed tokens of a row as text, each with its step, up to the end of the text.

        Raises
        ------
        SettingError
            If nothing was watched yet, or there is no such row.
        """
        if not -len(self.steps) <= row < len(self.steps):
            seen = f"rows 0 to {len(self.steps) - 1} were watched" if len(self.steps) else "no run was watched yet"
            raise SettingError(f"row={row}: {seen}; call the pipeline with callback_on_step_end=commits")
        found = []
        for token, step in zip(self.tokens[row].tolist(), self.steps[row].tolist(), strict=True):
            if step and token == tokenizer.eos_token_id:
                break
            if step:
                found.append((tokenizer.decode([token]), step))
        return found

    def picture(self, tokenizer: Any, row: int = 0) -> Image.Image:
        """The text of a row, each token on the colour of its step: dark came first, yellow last."""
        words = self.words(tokenizer, row)
        order = {step: number for number, step in enumerate(sorted({step for _, step in words}))}
        font = ImageFont.load_default(SIZE)
        cells = _placed([word for word, _ in words], font)
        bottom = max((top for _, top, _ in cells), default=LINE) + LINE + MARGIN
        drawn = Image.new("RGB", (WIDTH, bottom), "white")
        pen = ImageDraw.Draw(drawn)
        told = f"{len(words)} tokens committed in {len(order)} steps, from the first (dark) to the last (yellow)"
        pen.text((MARGIN, MARGIN), told, "#555555", font)
        for (word, step), (left, top, width) in zip(words, cells, strict=True):
            colour = _colour(order[step] / max(len(order) - 1, 1))
            pen.rounded_rectangle((left, top, left + width, top + LINE - 6), 4, colour)
            pen.text((left + 6, top + 4), word.strip(), _readable(colour), font)
        return drawn

    def save(self, path: Path | str, tokenizer: Any, row: int = 0) -> None:
        """Write the picture of a row into a file."""
        self.picture(tokenizer, row).save(path)


def _placed(words: list[str], font: Any) -> list[tuple[int, int, int]]:
    """Left, top and width of each word, line by line below the title."""
    left, top, cells = MARGIN, MARGIN + LINE, []
    for word in words:
        width = max(int(font.getlength(word.strip())), SHORT) + 12
        if left + width > WIDTH - MARGIN and left > MARGIN:
            left, top = MARGIN, top + LINE
        cells.append((left, top, width))
        left += width + 5
    return cells


def _colour(share: float) -> tuple[int, int, int]:
    """Between the colours that stand beside a share of the steps."""
    place = share * (len(COLOURS) - 1)
    low = min(int(place), len(COLOURS) - 2)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in zip(COLOURS[low], COLOURS[low + 1], strict=True))
    return red, green, blue


def _readable(colour: tuple[int, int, int]) -> str:
    """Black on light colours, white on dark ones."""
    red, green, blue = colour
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "white"
