"""Which patches of a video a language model got in the last call, as numbers and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from mmaccel.errors import SettingError, UsageError
from mmaccel.files.pictures import SMALLEST, headed, on_white, sheet
from mmaccel.session import Session

FRAMES_A_ROW = 8
GONE, MERGED = 0.72, (255, 140, 0)  # share of white over what is gone; outline of what stands for several tokens


class Kept:
    """What was left of one video or picture, or of a part of a picture; see :func:`kept`.

    Attributes
    ----------
    sizes : float32 `[F, rows, columns]`
        How many tokens each token is the mean of; 0 for those that are gone.

    Examples
    --------
    >>> Kept(torch.tensor([[[1.0, 0.0], [3.0, 1.0]]])).share
    0.75
    """

    def __init__(self, sizes: torch.Tensor) -> None:
        self.sizes = sizes.cpu()

    @property
    def share(self) -> float:
        """Tokens that stayed, of all."""
        return float((self.sizes > 0).float().mean())

    def picture(self, frames: Any) -> Image.Image:
        """The frames with what is gone under white, and merged tokens outlined.

        Parameters
        ----------
        frames
            Pictures or uint8 arrays `[H, W, 3]`, one for each frame of :attr:`sizes`, or several where a model takes
            so many for one; for the last one there may be fewer.

        Raises
        ------
        SettingError
            If the number of frames does not fit.
        """
        step = -(-len(frames) // len(self.sizes))
        if not step or -(-len(frames) // step) != len(self.sizes):
            raise SettingError(
                f"{len(frames)} frames for {len(self.sizes)} of tokens: give the frames that the model was given"
            )
        shown = [_marked(frame, sizes) for frame, sizes in zip(frames[::step], self.sizes, strict=True)]
        return sheet([headed(f, f"frame {n * step}") for n, f in enumerate(shown)], min(len(shown), FRAMES_A_ROW))

    def save(self, frames: Any, path: str | Path) -> None:
        """Write :meth:`picture` to a file."""
        self.picture(frames).save(path)


def kept(session: Session) -> list[Kept]:
    """What the last call of a session left of each video and picture, in the order of the prompt.

    Where a model cuts a picture up, there is one for each tile (InternVL), or one for the whole picture and one for the
    enlarged one behind it (LLaVA); tiles of SmolVLM are the frames of one.

    Raises
    ------
    SettingError
        If that call shortened no prompt, or there was none.

    Examples
    --------
    >>> with mmaccel.accelerate(model, vlm.VidCom2()) as fast:  # doctest: +SKIP
    ...     fast.generate(**inputs)
    ...     vlm.kept(fast)[0].save(frames, "kept.png")
    """
    if not hasattr(session, "adapter"):
        raise UsageError(f"{type(session).__name__} is no session: give what accelerate() returned")
    last = getattr(session.adapter, "last", None)
    if last is None:
        raise SettingError("the last call of this session left out no visual tokens: call generate with a video first")
    prompt, cuts = last
    found = [sizes.clone() for sizes in prompt.sizes]
    if cuts is not None and cuts.columns:
        columns = cuts.columns[max(cuts.columns)]
        _hide_cut(found, prompt, columns.index, columns.real)
    order = sorted(range(len(found)), key=lambda index: prompt.starts[index])
    return [Kept(found[index]) for index in order]


def _hide_cut(found: list[torch.Tensor], prompt: Any, columns: torch.Tensor, real: torch.Tensor) -> None:
    """Mark what was dropped inside the decoder as gone."""
    rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)[real]
    source = rows // (len(columns) // len(prompt.input_ids))
    number, anchor = prompt.number[source, columns[real]], prompt.anchor[source, columns[real]]
    for index, sizes in enumerate(found):
        stays = torch.zeros(sizes.numel(), dtype=torch.bool, device=sizes.device)
        stays[anchor[number == index]] = True
        sizes.mul_(stays.view_as(sizes))


def _marked(frame: Any, sizes: torch.Tensor) -> Image.Image:
    picture = frame if isinstance(frame, Image.Image) else Image.fromarray(np.asarray(frame))
    picture = on_white(picture).resize((SMALLEST, SMALLEST), Image.Resampling.BICUBIC)
    gone = Image.fromarray(((sizes == 0).numpy() * round(255 * GONE)).astype(np.uint8))
    picture.paste((255, 255, 255), mask=gone.resize(picture.size, Image.Resampling.NEAREST))
    draw = ImageDraw.Draw(picture)
    height, width = SMALLEST / sizes.shape[0], SMALLEST / sizes.shape[1]
    for row, column in (sizes > 1).nonzero().tolist():
        box = (column * width + 1, row * height + 1, (column + 1) * width - 2, (row + 1) * height - 2)
        draw.rectangle(box, outline=MERGED, width=2)
    return picture
