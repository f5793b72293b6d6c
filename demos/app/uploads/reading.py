"""What visitors upload: checked by content, size and length before anything decodes it, and decoded apart."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from mmaccel import vlm
from mmaccel.errors import AudioError, PromptError, VideoFileError
from mmaccel.speech.audio import uploaded_audio
from mmaccel.uploads import pictures
from mmaccel.vlm.input import uploaded_video

from ..limits import Limits
from ..runs import Run


def read_picture(path: str | None, limits: Limits) -> Image.Image:
    """As :func:`pictures.read_picture`."""
    if not path:
        raise PromptError("there is no picture yet: upload one first, or pick an example")
    return pictures.read_picture(Path(path), limits)


def read_clip(path: str | None, frames: int, limits: Limits, run: Run | None = None) -> vlm.VideoFrames:
    """As :func:`uploaded_video.read_clip`; raises `Stopped` if the visitor ends `run` meanwhile."""
    if not path:
        raise VideoFileError("there is no clip yet: upload one first, or pick an example")
    return uploaded_video.read_clip(path, frames, limits, run)


def read_recording(path: str | None, limits: Limits, run: Run | None = None) -> torch.Tensor:
    """As :func:`uploaded_audio.read_recording`; raises `Stopped` if the visitor ends `run` meanwhile."""
    if not path:
        raise AudioError("there is no recording yet: upload one first, or pick an example")
    return uploaded_audio.read_recording(path, limits, run)
