"""Texts, pictures and videos to the arguments of a model, by a processor of whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .read_video import VideoFrames


def processed(processor: Any, texts: Sequence[str], videos: Sequence[Any], pictures: Sequence[Any] = ()) -> Any:
    """What a processor makes of texts with their pictures and with every frame of their videos.

    Parameters
    ----------
    videos
        :class:`~mmaccel.vlm.VideoFrames`, whose times the processor is told, or pictures and arrays of which none are
        known.
    """
    shown = {"images": list(pictures), "videos": [list(video) for video in videos]}
    given: dict[str, Any] = {kind: items for kind, items in shown.items() if items}
    if videos and hasattr(processor, "video_processor"):  # some of transformers' choose among frames as in a whole file
        given |= {"do_sample_frames": False, "video_metadata": [_metadata(video) for video in videos]}
    return processor(text=list(texts), return_tensors="pt", padding=True, **given)


def _metadata(video: Any) -> dict[str, Any]:
    """What is known of a video; of frames without times no more than a processor sees by itself."""
    if isinstance(video, VideoFrames):
        return video.metadata
    return {"total_num_frames": len(video), "frames_indices": list(range(len(video)))}
