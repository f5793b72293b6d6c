"""What a visitor may ask for. Everything that comes from a browser is checked against this, never trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mmaccel.errors import PromptError, SettingError
from mmaccel.uploads.limits import UploadLimits


@dataclass(frozen=True)
class Limits(UploadLimits):
    """Bounds of one request, of its uploads too, and of the app.

    Attributes
    ----------
    prompt_characters, method_characters
        Longest texts.
    steps, frames, side
        Denoising steps, frames, and pixels of a side of a clip.
    waiting
        Visitors in the queue; the next one is told to come back later.
    sessions
        Open pages whose state Gradio keeps, about 0.3 MiB each; it forgets none by itself, not even closed ones.
    file_seconds
        Age at which files made for a visitor are deleted.
    disk_bytes
        All files of visitors that lie there at once, beyond which uploads are refused.
    """

    prompt_characters: int = 2_000
    method_characters: int = 500
    steps: int = 100
    frames: int = 129
    waiting: int = 16
    sessions: int = 64
    file_seconds: int = 3_600
    disk_bytes: int = 512 * 2**20

    def prompt(self, text: Any) -> str:
        """The prompt, without spaces around it.

        Raises
        ------
        PromptError
            If it is no text, or too long.
        """
        text = text.strip() if isinstance(text, str) else ""
        if len(text) > self.prompt_characters:
            raise PromptError(f"the prompt has {len(text)} characters: shorten it to {self.prompt_characters} or fewer")
        return text

    def method(self, text: Any) -> str:
        """The text of own methods; raises a `SettingError` where it is too long."""
        text = text.strip() if isinstance(text, str) else ""
        if len(text) > self.method_characters:
            raise SettingError(f"the method has {len(text)} characters: {self.method_characters} are enough")
        return text


def number(name: str, text: Any, low: float, high: float, whole: bool = True) -> Any:
    """A number that a visitor typed, None where the field is empty.

    Raises
    ------
    SettingError
        If it is no number between `low` and `high`, or not whole where it must be.

    Examples
    --------
    >>> number("steps", " 4", 1, 100), number("steps", "", 1, 100)
    (4, None)
    """
    text = "" if text is None else str(text).strip()
    if not text:
        return None
    try:
        value = int(text[:30]) if whole else float(text[:30])
    except ValueError:
        value = math.nan
    if not low <= value <= high:  # also where it is not a number
        kind = "a whole number" if whole else "a number"
        raise SettingError(f"{name} {text[:30]}: give {kind} from {low:.10g} to {high:.10g}, or leave the field empty")
    return value
