"""The app as a server: behind its door, within its quota, and never sent to fetch files from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.route_utils import API_PREFIX
from gradio.routes import App, ORJSONResponse
from starlette.types import ASGIApp

from mmaccel.serve.door import Door

from .limits import Limits
from .uploads.quota import Quota

# Gradio's own work on uploads: it runs FFmpeg, or writes files, without the limits of this app.
CLOSED = ("/process_recording", "/vibe-", "/undo-vibe-", "/proxy=", "/component_server", "/stream/")


class DemoDoor(Door):
    """Refuses what does not come from a page of the demo, and what of Gradio no tab asks for."""

    called = "demo"

    def is_closed(self, path: str) -> bool:
        is_file = path.startswith(f"{API_PREFIX}/file=")  # which visitors name as they like
        return not is_file and any(part in path for part in CLOSED)


class Served(App):
    """Gradio's app, with the door outermost: nothing of Gradio answers a page of another site, CORS included."""

    def __init__(self, limits: Limits, hosts: Iterable[str]) -> None:
        super().__init__(default_response_class=ORJSONResponse)
        self.limits, self.hosts = limits, tuple(hosts)

    def build_middleware_stack(self) -> ASGIApp:
        inner = Quota(super().build_middleware_stack(), self.uploaded_file_dir, self.limits)
        return DemoDoor(inner, self.hosts)


def take_only_uploads(blocks: gr.Blocks) -> None:
    """Let no component download a file from an address that a visitor names, of any size and from anywhere."""
    component: Any
    for component in blocks.blocks.values():
        take = component.async_move_resource_to_block_cache

        async def taken(file: str | Path | None, take: Any = take) -> str | None:
            if "://" in str(file):
                raise gr.Error("Upload the file itself: nothing is fetched from other places.", print_exception=False)
            return await take(file)

        component.async_move_resource_to_block_cache = taken
