"""Clips over HTTP, as OpenAI's `videos` asks for them: first a promise, and later the file."""

from __future__ import annotations

import inspect
import json
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmaccel.cli.arguments import FRAMES, SIDE, STEPS
from mmaccel.errors import SettingError, shown
from mmaccel.files import clips
from mmaccel.serve.endpoint import LARGEST_SEED, Endpoint, Fields, Left, Request

from .families.rates import rate_of
from .generation import VideoSettings, check_memory, check_settings, film, on_step_end, refuse_pictures

PROMPT = 4_000  # characters
NUMBERS = ("seconds", "seed", "steps", "guidance", "frames")  # texts in a form


@dataclass(kw_only=True)
class ClipRequest(Request):
    """A request for a clip."""

    prompt: str
    settings: VideoSettings


class VideoEndpoint(Endpoint[ClipRequest]):
    """Makes clips, one after the other."""

    path = "/v1/videos"
    takes_forms = True
    later, media = "video", "video/mp4"

    def __init__(self, name: str, opened: Any, target: Any) -> None:
        super().__init__(name, opened, target)
        clips.check_format(Path("clip.mp4"))
        refuse_pictures(opened)
        opened.set_progress_bar_config(disable=True)
        self.rate = rate_of(opened)

    def parse(self, body: Mapping[str, Any]) -> ClipRequest:
        fields = Fields({name: _number(value) if name in NUMBERS else value for name, value in body.items()})
        prompt = fields.text("prompt", PROMPT)
        seed = fields.whole("seed", 0, LARGEST_SEED)
        seconds, frames = fields.number("seconds", 1 / self.rate, FRAMES / self.rate), fields.whole("frames", 1, FRAMES)
        if seconds is not None:
            if frames is not None:
                raise SettingError("seconds and frames say the same: give one of them")
            frames = round(seconds * self.rate) + 1
        width, height = _size(fields.take("size"))
        settings = VideoSettings(
            seed=secrets.randbelow(2**31) if seed is None else seed,
            steps=fields.whole("steps", 1, STEPS),
            guidance=fields.number("guidance", -100, 100),
            frames=frames,
            width=width,
            height=height,
        )
        fields.end()
        check_memory(settings)
        check_settings(self.opened, settings)
        return ClipRequest(prompt=prompt, settings=settings)

    def answer(self, requests: list[ClipRequest]) -> list[bytes]:
        """Make the clip of the only request."""
        (request,) = requests
        steps = request.settings.steps or self._usual("num_inference_steps") or 1

        def check(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            if request.left.is_set():
                raise Left
            request.progress = min(99, round(100 * (step + 1) / steps))
            return tensors

        frames = film(self.target, request.prompt, request.settings, **on_step_end(self.opened, check)).frames
        with tempfile.TemporaryDirectory(prefix="mmaccel-serve-") as folder:
            path = Path(folder) / "clip.mp4"
            clips.save(frames, path, self.rate)
            request.settings.frames = len(frames)  # pipelines round what is asked for
            request.settings.width, request.settings.height = frames[0].size
            return [path.read_bytes()]

    def described(self, request: ClipRequest) -> dict[str, Any]:
        """The prompt, and the length and the size of the clip as OpenAI writes them, as soon as they are known."""
        settings = request.settings
        frames, width, height = (
            getattr(settings, own) or self._usual(name)
            for own, name in (("frames", "num_frames"), ("width", "width"), ("height", "height"))
        )
        length = {"seconds": f"{(frames - 1) / self.rate:g}"} if frames else {}
        size = {"size": f"{width}x{height}"} if width and height else {}
        return {"prompt": request.prompt, **length, **size}

    def _usual(self, name: str) -> int | None:
        """The pipeline's own default, where it is a number."""
        found = inspect.signature(type(self.opened).__call__).parameters.get(name)
        return found.default if found is not None and isinstance(found.default, int) else None


def _number(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _size(text: Any) -> tuple[int | None, int | None]:
    if text in (None, "auto"):
        return None, None
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text) if isinstance(text, str) else None
    if found is None or not all(1 <= int(side) <= SIDE for side in found.groups()):
        raise SettingError(f"size={shown(text)}: give width and height up to {SIDE}, such as 64x64")
    return int(found[1]), int(found[2])


ENDPOINT = VideoEndpoint
