"""Recordings of strangers, decoded apart."""

from __future__ import annotations

from pathlib import Path

import torch

from mmaccel.errors import AudioError
from mmaccel.uploads.apart import UploadRun, Wanted, decoded_apart
from mmaccel.uploads.found import found
from mmaccel.uploads.limits import UploadLimits

from . import audio_file
from .audio import joined


def read_recording(path: Path | str, limits: UploadLimits, run: UploadRun | None = None) -> torch.Tensor:
    """The sound of an uploaded file, float32 `[samples]` at 16,000 a second.

    Raises
    ------
    AudioError
        If it holds no sound, or is too large, too long or too much to decode.
    """
    with found(path, limits, AudioError) as file:
        return joined(decoded_apart(run or Wanted(), file, limits, AudioError, audio_file.__file__), file)
