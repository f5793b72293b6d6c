"""The rules by which each model family chooses frames of a video."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

import numpy as np
import torch

from mmaccel.errors import SettingError, unknown_name
from mmaccel.method import is_count, plain_number

MIN_FRAMES, MAX_FRAMES = 4, 768  # of Qwen2-VL's and Qwen3-VL's processors


def uniform(total: int, count: int) -> np.ndarray:
    """The first frame of each of `count` equal parts, the rule of most transformers video processors."""
    return np.arange(count) * total // count


def llava(total: int, count: int) -> np.ndarray:
    """From the first frame to the last in equal steps, rounded down (LLaVA-Video, LLaVA-OneVision)."""
    return np.linspace(0, total - 1, count, dtype=np.int64)


def qwen(total: int, count: int) -> np.ndarray:
    """Equal steps from the first frame on, `count` even (Qwen2-VL, Qwen2.5-VL)."""
    return _steps(0.0, total, count)


def qwen3(total: int, count: int) -> np.ndarray:
    """From the first frame to the last in equal steps, to the nearest frame (Qwen3-VL)."""
    return np.linspace(0, total - 1, count).round().astype(np.int64)


def internvl(total: int, count: int) -> np.ndarray:
    """The middle of each of `count` equal parts (InternVL)."""
    return _steps(total / count / 2, total, count)


def _steps(first: float, total: int, count: int) -> np.ndarray:
    # in single precision as in transformers: where a step falls just short of a frame, the numbers are the same
    return torch.arange(first, total, total / count)[:count].int().numpy().astype(np.int64)


Rule = Callable[[int, int], np.ndarray]
RULES: dict[str, Rule] = {"llava": llava, "qwen": qwen, "qwen3": qwen3, "internvl": internvl, "uniform": uniform}


def sample_frames(
    sampling: str,
    total: int,
    *,
    frames: int | None = None,
    fps: float | None = None,
    rate: float | None = None,
    min_frames: int = MIN_FRAMES,
    max_frames: int = MAX_FRAMES,
    name: str = "the video",
) -> np.ndarray:
    """The indices of the frames that a family of models would take.

    Parameters
    ----------
    sampling
        ``"llava"``, ``"qwen"``, ``"qwen3"``, ``"internvl"`` or ``"uniform"``.
    total
        Frames to choose from.
    frames
        Number of frames to take; ``"qwen"`` takes the nearest even number that there is, and 1 of a single frame.
    fps
        Frames to take per second instead. ``"llava"`` then takes every n-th frame.
    rate
        Frames per second of the video, needed with `fps`.
    min_frames, max_frames
        Bounds of the number that results from `fps`, default 4 and 768 as in the Qwen processors. A shorter video gives
        all its frames; ``"llava"`` has no lower bound.
    name
        Name of the video in errors.

    Returns
    -------
    int64, ascending.

    Raises
    ------
    UnknownNameError
        If there is no such rule.
    SettingError
        If not exactly one of `frames` and `fps` is given, one is out of range, or there are too few frames.

    Examples
    --------
    >>> sample_frames("llava", 100, frames=4).tolist(), sample_frames("internvl", 100, frames=4).tolist()
    ([0, 33, 66, 99], [12, 37, 62, 87])
    >>> sample_frames("qwen", 100, fps=2, rate=25.0).tolist()
    [0, 12, 25, 37, 50, 62, 75, 87]
    """
    check_sampling(sampling, frames, fps, min_frames, max_frames)
    if frames is not None:
        if frames > total:
            raise SettingError(f"{frames} frames requested, but {name} has {total}: pass frames={total} or fewer")
        even = min(max(2, round(frames / 2) * 2), total // 2 * 2) or 1
        return RULES[sampling](total, even if sampling == "qwen" else frames)
    assert fps is not None and rate is not None
    if sampling == "llava":
        every = np.arange(0, total, max(1, round(min(rate / fps, total))))
        return every if len(every) <= max_frames else llava(total, max_frames)
    return RULES[sampling](total, _count(sampling, total, total / rate * fps, min_frames, max_frames))


def _count(sampling: str, total: int, asked: float, min_frames: int, max_frames: int) -> int:
    if sampling == "qwen":
        most = min(max_frames, total) // 2 * 2
        return max(1, math.floor(min(max(asked, min_frames), most) / 2) * 2)
    return min(max(int(asked), min_frames), max_frames, total)


def check_sampling(sampling: str, frames: int | None, fps: float | None, min_frames: int, max_frames: int) -> None:
    """Raise for settings that no video can satisfy."""
    if not isinstance(sampling, str) or sampling not in RULES:
        raise unknown_name("sampling", sampling, RULES)
    if (frames is None) == (fps is None):
        raise SettingError(f"frames={frames!r}, fps={fps!r}: give one of the two, such as frames=32")
    if frames is not None and not is_count(plain_number(frames)):
        raise SettingError(f"frames={frames!r}: pass a whole number of at least 1, such as frames=32")
    if fps is not None and not (isinstance(fps, Real) and math.isfinite(fps) and fps > 0):
        raise SettingError(f"fps={fps!r}: pass frames per second above 0, such as fps=2")
    if not 1 <= min_frames <= max_frames:
        raise SettingError(f"min_frames={min_frames}, max_frames={max_frames}: at least 1, and in this order")
