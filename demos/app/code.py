"""The Python that does what a tab just did, made from the very settings that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .choice import Choice

if TYPE_CHECKING:
    from .image_run import ImageRequest
    from .video_run import VideoRequest


def image_code(request: ImageRequest) -> str:
    """Python that draws the same picture; another sample only where a method picks its window from times."""
    prompts = f"[{request.prompt!r}]"
    plain = ["    with fast.baseline() as plain:", f"        painter.generate(plain, {prompts}, settings)"]
    return _joined(
        *imports(request.choice, "from mmaccel.image import generation"),
        "",
        f"painter = generation.load({request.choice.model!r})",
        f"settings = {call('generation.Settings', request.settings)}",
        f"with mmaccel.accelerate(painter.target, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    painted = painter.paint(fast, {prompts}, settings)",
        "    print(fast.report)",
        'painted.pictures[0].save("picture.png")',
    )


def video_code(request: VideoRequest) -> str:
    """Python that films the same clip; another one only where a method picks its steps from times."""
    prompt = repr(request.prompt)
    plain = ["    with fast.baseline() as plain:", f"        generation.film(plain, {prompt}, settings)"]
    return _joined(
        "from pathlib import Path",
        "",
        *imports(request.choice, "from mmaccel.video import clips, generation"),
        "",
        f"pipe = generation.load({request.choice.model!r})",
        f"settings = {call('generation.Settings', request.settings)}",
        f"with mmaccel.accelerate(pipe, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    filmed = generation.film(fast, {prompt}, settings)",
        "    print(fast.report)",
        'clips.save(filmed.frames, Path("clip.mp4"))',
    )


def imports(choice: Choice, *more: str) -> list[str]:
    """The first lines: mmaccel, the parts whose methods are named, and what else is needed."""
    parts = choice.parts()
    return ["import mmaccel", *([f"from mmaccel import {', '.join(parts)}"] if parts else []), *more]


def call(name: str, settings: object) -> str:
    """The call that makes a dataclass, without what is left at its default."""
    defaults = vars(type(settings)())
    given = {key: value for key, value in vars(settings).items() if value != defaults[key]}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _joined(*lines: str) -> str:
    return "\n".join(lines) + "\n"
