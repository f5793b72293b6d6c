"""Arguments that a call has alone and in a batch: of a question about a video, and of a page that is read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmaccel.cli.arguments import FRAMES, TOKENS, positive, whole
from mmaccel.errors import SettingError

if TYPE_CHECKING:
    from .input.read_video import VideoFrames

READER = "tiny-reader"


def add_answer(parser: Any) -> None:
    """Add the arguments for the frames of a video and the length of an answer."""
    parser.add_argument("--frames", type=whole(1, FRAMES), default=32, help="most frames to look at (default 32)")
    length = "longest answer in tokens (default 32)"
    parser.add_argument("--max-new-tokens", type=whole(1, TOKENS), default=32, metavar="TOKENS", help=length)


def add_fps(parser: Any) -> None:
    """Add the other way to say which frames of a video are looked at."""
    parser.add_argument("--fps", type=positive, help="frames per second to look at, instead of --frames")


def frames_of(arguments: argparse.Namespace) -> VideoFrames:
    """As many frames of a video file as requested, or all if it has fewer."""
    from .input.read_video import read_at_most, read_video

    if getattr(arguments, "fps", None) is not None:
        return read_video(arguments.video, fps=arguments.fps)
    return read_at_most(arguments.video, arguments.frames)


def add_reading(parser: Any) -> None:
    """Add the arguments for what the reader is asked, and the length of its text."""
    parser.add_argument("--prompt", help="what the reader is asked, where it has no prompt of its own")
    length = "longest text in tokens (default 1024)"
    parser.add_argument("--max-new-tokens", type=whole(1, TOKENS), default=1024, metavar="TOKENS", help=length)


def given_regions(session: Any, regions: list[Any], file: Path | None) -> dict[str, Any]:
    """The regions, for the method of a session that takes them.

    Raises
    ------
    SettingError
        If none does, and they are of a file that was named.
    """
    from .drafts.document_draft import DocumentDraft

    if any(isinstance(method, DocumentDraft) for method in session.plan.methods):
        return {"regions": regions}
    if file is not None:
        methods = ", ".join(method.name for method in session.plan.methods) or "the plain model"
        raise SettingError(f"--regions: {methods} uses none: leave them out, or add --method vlm.DocumentDraft")
    return {}
