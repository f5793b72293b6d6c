"""Clips on disk: one, or several runs side by side with their times."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import SettingError, required
from . import pictures
from .endings import CLIPS
from .pictures import enlarged, sheet

Clip = Sequence[Image.Image]
FASTEST_GIF = 50  # frames a second: a frame of a hundredth of a second is shown for a tenth


def check_format(path: Path, rate: float | None = None) -> None:
    """Raise a `SettingError` for a file name that no clip format, or this rate, goes with, before any work is done."""
    if path.suffix.lower() not in CLIPS:
        raise SettingError(f"cannot write a clip as {path.name!r}: end the name with {', '.join(CLIPS)}")
    if path.suffix.lower() == ".gif" and rate and rate > FASTEST_GIF:
        raise SettingError(
            f"rate={rate:g}: browsers play a .gif at no more than {FASTEST_GIF} frames a second, and a faster one"
            " slowly: give a lower rate, or end the name with .mp4"
        )
    if path.suffix.lower() == ".mp4":
        _av()


def save(clip: Clip, path: str | Path, rate: float = 8) -> None:
    """Write frames as .mp4 (needs PyAV), .gif or .webp at `rate` frames a second, or .png with all of them.

    Raises
    ------
    SettingError
        If the file name has another ending, there are no frames, or a .gif has more than 50 a second.
    MissingExtraError
        If an .mp4 is asked for and PyAV is not installed.
    """
    path = Path(path)
    check_format(path, rate)
    if not clip:
        raise SettingError(f"no frames to write to {path.name}")
    kind = path.suffix.lower()
    if kind == ".mp4":
        _save_mp4(clip, path, rate)
    elif kind == ".png":
        sheet(list(clip), len(clip)).save(path)
    else:
        webp, gif = {"quality": 90, "duration": 1000 / rate}, {"disposal": 2, "duration": _durations(len(clip), rate)}
        first, *others = clip
        more: dict[str, Any] = webp if kind == ".webp" else gif
        first.save(path, save_all=True, append_images=others, loop=0, **more)


def _durations(count: int, rate: float) -> list[int]:
    """Milliseconds of each frame of a .gif, in whole hundredths of a second, as long as they should be together."""
    ends = [round(100 * frame / rate) for frame in range(count + 1)]
    return [10 * (end - start) for start, end in pairwise(ends)]


def side_by_side(clips: Sequence[Clip], labels: Sequence[str]) -> list[Image.Image]:
    """Clips of equal length as one, each with its label above."""
    return [pictures.side_by_side([enlarged(f) for f in frames], labels) for frames in zip(*clips, strict=True)]


def _save_mp4(clip: Clip, path: Path, rate: float) -> None:
    av = _av()
    width, height = (size - size % 2 for size in clip[0].size)  # H.264 in 4:2:0 takes even sizes only
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(rate).limit_denominator(1000))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "16"}
        for frame in clip:
            array = np.asarray(frame.convert("RGB"))[:height, :width]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(stream.encode())


def _av() -> Any:
    return required("av", 'writing .mp4 needs PyAV: pip install "mmaccel[video]" (.gif needs nothing)')
