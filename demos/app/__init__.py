"""The demo app: what mmaccel does, in a browser, on the shipped models or on those of the operator."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mmaccel.errors import MissingExtraError

if find_spec("gradio") is None:
    raise MissingExtraError('the demo needs gradio: pip install "mmaccel[demo]"')

import gradio as gr

from mmaccel.modality import modalities

from .frame import Frame
from .limits import Limits
from .looks import style
from .models import Models
from .served import Served, take_only_uploads

__all__ = ["Frame", "Limits", "Models", "build", "launch"]

M_ARENA_MAX, HEAPS = -8, 2  # of mallopt(3)

TITLE = "mmaccel"
INTRODUCTION = """<header><h1>mmaccel</h1>
<p>Existing multimodal models, faster, without retraining. Watch both race on this machine.</p></header>"""
# Nothing is offered to other programs, kept of a visitor, or asked of another server.
PRIVATE: dict[str, Any] = {
    "share": False,
    "show_error": False,
    "footer_links": ["settings"],
    "run_history": False,
    "enable_monitoring": False,
    "mcp_server": False,
    "ssr_mode": False,
    "pwa": False,
    "quiet": True,
    "prevent_thread_lock": True,
}


def build(frame: Frame | None = None) -> gr.Blocks:
    """The app as Gradio blocks; nothing is loaded before a visitor asks for it."""
    frame = frame or Frame()
    age = frame.limits.file_seconds
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(max(1, age // 4), age)) as blocks:
        gr.HTML(INTRODUCTION, elem_classes="brand")
        for modality in modalities():
            if modality.tab:
                with gr.Tab(modality.tab_title):
                    import_module(modality.tab).build(frame)
        blocks.unload(frame.stop)
    take_only_uploads(blocks)
    blocks.queue(max_size=frame.limits.waiting, default_concurrency_limit=1, api_open=False)
    return blocks


def launch(
    frame: Frame | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    wait: bool = True,
    allow_hosts: Iterable[str] = (),
) -> gr.Blocks:
    """Serve the app.

    Parameters
    ----------
    host
        Address to listen on; the default is this machine alone.
    port
        Default: the first free one from 7860 on.
    wait
        Whether to return only when it is closed (default True); Ctrl+C is raised.
    allow_hosts
        Names by which visitors reach it, beside `host`, localhost and the address that they connect to. A proxy in
        front of it must pass on the `Host` that it was asked for.

    Raises
    ------
    OSError
        If the port is taken, or the address is none of this machine.
    """
    frame = frame or Frame()
    blocks = build(frame)
    _share_memory()
    try:
        _, url, _ = blocks.launch(
            server_name=host,
            server_port=port,
            max_file_size=frame.limits.upload_bytes,
            state_session_capacity=frame.limits.sessions,
            theme=style.theme(),
            css=style.CSS,
            js=style.script(),
            _app=Served(frame.limits, (host, *allow_hosts)),
            **PRIVATE,
        )
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port or 'any'}: choose others with --host and --port") from error
    print(f"mmaccel demo on {url} (Ctrl+C stops it)", flush=True)
    if wait:
        try:
            blocks.block_thread()
            if blocks.is_running:  # Ctrl+C, which Gradio keeps to itself
                raise KeyboardInterrupt
        finally:
            frame.runs.close()
    return blocks


def _share_memory() -> None:
    """Let the threads of glibc share two heaps: with one each, what is free in them adds up to hundreds of MiB.

    Other C libraries are left as they are.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_ARENA_MAX, HEAPS)
