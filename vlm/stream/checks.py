"""What a stream is given: its settings and its frames, refused before anything is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from mmaccel.adapter import find_adapter
from mmaccel.cache.argument import cache_name, cache_of
from mmaccel.decoding.setting import setting
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError
from mmaccel.method import is_count, is_number

from ..families.llava_onevision import LlavaOnevisionAdapter
from ..input.arguments import GUESSING
from ..input.read_video import VideoFrames
from .response_gate import ResponseGate
from .streaming_compression import StreamingCompression


def streaming_adapter(model: Any) -> LlavaOnevisionAdapter:
    """The adapter of a model that can watch a stream.

    Raises
    ------
    UnsupportedTargetError
        If the model is of another family.
    """
    adapter = find_adapter(model)
    if not isinstance(adapter, LlavaOnevisionAdapter) or not hasattr(model.model, "get_video_features"):
        raise UnsupportedTargetError(
            f"no streams for {type(model).__name__}: LlavaOnevisionForConditionalGeneration and"
            " LlavaNextVideoForConditionalGeneration have them"
        )
    return adapter


def check_settings(method: Any, memory: Any, gate: Any, prefill: Any, reread: Any) -> None:
    """Refuse settings of a stream that are out of range.

    Raises
    ------
    SettingError
        Names the first, its value and what to pass.
    """
    share = "a share of the memory of at least 0, such as 0.25, or None"
    fits = {
        "method": (method, method is None or isinstance(method, StreamingCompression), "a vlm.StreamingCompression()"),
        "memory": (memory, is_count(memory), "a whole number of tokens of at least 1"),
        "gate": (gate, gate is None or isinstance(gate, ResponseGate), "a vlm.ResponseGate()"),
        "prefill": (prefill, isinstance(prefill, bool), "True or False"),
        "reread": (reread, reread is None or is_number(reread, 0), share),
    }
    for name, (value, is_fit, wanted) in fits.items():
        if not is_fit:
            raise SettingError(f"{name}={value!r}: pass {wanted}")


def check_answer(model: Any, more: dict[str, Any]) -> None:
    """Refuse what an answer to a stream cannot be asked for, as arguments of `generate`.

    Raises
    ------
    SettingError
        Names the first, and says why.
    """
    config = more.get("generation_config") or model.generation_config
    for name in ("return_dict_in_generate", "num_return_sequences"):
        for value in (more.get(name), getattr(config, name, None)):
            if value and (value is True or value > 1):
                raise SettingError(f"{name}={value!r}: ask returns the text of one answer, leave it out")
    if cache_of(more) is not None:
        raise SettingError(f"{cache_name()}: a stream has a cache of its own, leave it out")
    for name in (*GUESSING, "prefill_chunk_size"):
        if setting(model, more, name):
            raise SettingError(f"{name}: a stream is read as embeddings, and this takes token ids: leave it out")


def check_question(question: Any) -> None:
    """Refuse what is no question.

    Raises
    ------
    PromptError
        Says what to ask.
    """
    if not isinstance(question, str):
        raise PromptError(f"question={question!r}: ask one question, such as 'what moves up?'")
    if not question.strip():
        raise PromptError("the question is empty: ask something about the video, such as 'what moves up?'")


def size_of(frame: Any) -> tuple[int, int]:
    """Rows and columns of a picture or array."""
    rows, columns = frame.size[::-1] if isinstance(frame, Image.Image) else frame.shape[:2]
    return rows, columns


def frames_of(pushed: Any) -> list[Any]:
    """The frames of a push, which is one or several.

    Raises
    ------
    PromptError
        If something else is among them.
    """
    is_several = isinstance(pushed, Sequence | VideoFrames) or getattr(pushed, "ndim", 3) == 4
    frames = list(pushed) if is_several else [pushed]
    for number, frame in enumerate(frames):
        _check_frame(frame, number)
    return frames


def _check_frame(frame: Any, number: int) -> None:
    shape = (*frame.size, 3) if isinstance(frame, Image.Image) else tuple(getattr(frame, "shape", ()))
    is_bytes = isinstance(frame, Image.Image) or str(getattr(frame, "dtype", "")).endswith("uint8")
    if not is_bytes or len(shape) != 3 or shape[2] != 3 or not all(shape):
        found = f"{type(frame).__name__} of {getattr(frame, 'dtype', 'no numbers')} {list(shape)}"
        raise PromptError(f"frame {number} of the push is a {found}: push PIL pictures or uint8 arrays [H, W, 3]")
