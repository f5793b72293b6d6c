"""The messages of a chat over HTTP: what a chat template takes, and the pictures and videos that stand in them."""

from __future__ import annotations

import base64
import io
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from mmaccel.errors import SettingError, shown
from mmaccel.serve.endpoint import FILES, Fields
from mmaccel.uploads.pictures import read_picture

from .input.read_video import VideoFrames
from .input.uploaded_video import read_clip

ROLES = ("system", "developer", "user", "assistant")
EMPTY = ("tool_calls", "annotations")  # of a message, as programs that call no tools send back what they were answered
KINDS = ("text", "image_url", "video_url")  # of a part, which holds it under this name
MESSAGES, CHARACTERS, MOST_FILES = 200, 200_000, 64  # of a request
MOST_PIXELS = 250_000_000  # of a request's pictures and frames, behind which no other file is decoded; a gigabyte
DATA = re.compile(r"data:(image|video)/([a-z0-9.+-]{1,40});base64,", re.IGNORECASE)


@dataclass
class Conversation:
    """A conversation.

    Attributes
    ----------
    frames
        To look at, of each video.
    messages
        For a chat template.
    pictures, videos
        What stands in them.
    """

    frames: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[Image.Image] = field(default_factory=list)
    videos: list[VideoFrames] = field(default_factory=list)

    def add(self, message: Any) -> None:
        """Read one more message."""
        fields = Fields(message if isinstance(message, dict) else {"role": ""})
        role, content = _role(fields.take("role")), fields.take("content")
        fields.take("name")
        for name in EMPTY:
            fields.only(name, [])
        fields.end()
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list) or not parts:
            raise SettingError("a message has no content: give a text, or a list of parts")
        self.messages.append({"role": role, "content": [self._part(part) for part in parts]})

    def _part(self, part: Any) -> dict[str, str]:
        """A part of a message for a chat template."""
        fields = Fields(part if isinstance(part, dict) else {})
        kind = fields.take("type")
        if kind not in KINDS:
            raise SettingError(f"a message has a part of the type {shown(kind)}: give {', '.join(KINDS)}")
        given = fields.take(kind)
        fields.end()
        if kind != "text":
            return self._seen(given, kind.removesuffix("_url"))
        if not isinstance(given, str):
            raise SettingError("a message has a part of the type 'text' without a text: give one, or leave it out")
        return {"type": "text", "text": given}

    def _seen(self, given: Any, kind: str) -> dict[str, str]:
        """A picture or a video for a chat template."""
        self._check_room()
        data, written = _file(given, kind)
        if kind == "image":
            self.pictures.append(read_picture(io.BytesIO(data), FILES))
        else:
            self.videos.append(_frames(data, written, self.frames))
        return {"type": kind}

    def _check_room(self) -> None:
        """Refuse one file more than a request may hold, before it is decoded."""
        if len(self.pictures) + len(self.videos) >= MOST_FILES:
            raise SettingError(f"there are more than {MOST_FILES} pictures and videos: send fewer")
        pixels = sum(picture.width * picture.height for picture in self.pictures)
        pixels += sum(video.frames[..., 0].size for video in self.videos)
        if pixels > MOST_PIXELS:
            raise SettingError(
                f"the pictures and videos have more than {MOST_PIXELS} pixels: send fewer, or smaller ones"
            )

    def characters(self) -> int:
        """Of all texts."""
        return sum(len(part.get("text", "")) for message in self.messages for part in message["content"])


def conversation_of(messages: Any, frames: int) -> Conversation:
    """The messages of a request; raises a `SettingError` that says what is wrong with them."""
    if isinstance(messages, list) and len(messages) > MESSAGES:
        raise SettingError(f"{len(messages)} messages: give at most {MESSAGES}")
    if not isinstance(messages, list) or not messages:
        raise SettingError(f"messages is missing: give 1 to {MESSAGES} of them, such as [{{'role': 'user', ...}}]")
    conversation = Conversation(frames)
    for message in messages:
        conversation.add(message)
    if conversation.characters() > CHARACTERS:
        raise SettingError(f"the messages have more than {CHARACTERS} characters: shorten them")
    return conversation


def _role(given: Any) -> str:
    """As chat templates call it."""
    if given not in ROLES:
        raise SettingError(f"a message has the role {shown(given)}: give one of {', '.join(ROLES)}")
    return "system" if given == "developer" else str(given)  # OpenAI's newer name, which no template knows


def _file(given: Any, kind: str) -> tuple[bytes, str]:
    """The file that stands in a data URL, and its format; nothing is ever fetched from another place."""
    fields = Fields(given if isinstance(given, dict) else {"url": given})
    url = fields.take("url")
    fields.only("detail", "auto", "low", "high")  # all that the model can see is shown to it
    fields.end()
    match = DATA.match(url) if isinstance(url, str) else None
    if match is None or match[1].lower() != kind or not isinstance(url, str):
        raise SettingError(f"{kind}_url must hold the file itself: data:{kind}/...;base64,... (nothing is fetched)")
    try:
        return base64.b64decode(url[match.end() :], validate=True), match[2].lower()
    except ValueError as error:  # binascii.Error is one too; other letters than ASCII raise a plain one
        raise SettingError(f"{kind}_url is no base64: {error}") from error


def _frames(data: bytes, kind: str, frames: int) -> VideoFrames:
    """Frames of a video file, `frames` of them or all it has."""
    with tempfile.TemporaryDirectory(prefix="mmaccel-serve-") as folder:
        path = Path(folder) / f"video.{kind}"  # animated pictures are told by it
        path.write_bytes(data)
        return read_clip(path, frames, FILES)
