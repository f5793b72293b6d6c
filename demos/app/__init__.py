"""The demo app: what mmaccel does, in a browser, on the shipped models or on those of the operator."""

from __future__ import annotations

from importlib.util import find_spec

from mmaccel.errors import MissingExtraError

if find_spec("gradio") is None:
    raise MissingExtraError('the demo needs gradio: pip install "mmaccel[demo]"')

import gradio as gr

from . import image_tab, style, video_tab
from .frame import Frame
from .limits import Limits
from .models import Models

__all__ = ["Frame", "Limits", "Models", "build", "launch"]

TITLE = "mmaccel"
INTRODUCTION = "# mmaccel\nExisting multimodal models, faster, without retraining: try a preset, and compare."
TABS = {"Image": image_tab.build, "Video": video_tab.build}


def build(frame: Frame | None = None) -> gr.Blocks:
    """The app as Gradio blocks; nothing is loaded before a visitor asks for it."""
    frame = frame or Frame()
    age = frame.limits.file_seconds
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(max(1, age // 4), age)) as blocks:
        gr.Markdown(INTRODUCTION)
        for name, tab in TABS.items():
            with gr.Tab(name):
                tab(frame)
        blocks.unload(frame.stop)
    blocks.queue(max_size=frame.limits.waiting, default_concurrency_limit=1, api_open=False)
    return blocks


def launch(
    frame: Frame | None = None, host: str = "127.0.0.1", port: int | None = None, wait: bool = True
) -> gr.Blocks:
    """Serve the app.

    Parameters
    ----------
    host
        Address to listen on; the default is this machine alone.
    port
        Default: the first free one from 7860 on.
    wait
        Whether to return only when it is stopped (default True).

    Raises
    ------
    OSError
        If the port is taken.
    """
    frame = frame or Frame()
    blocks = build(frame)
    _, url, _ = blocks.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        show_error=False,
        max_file_size=frame.limits.upload_bytes,
        footer_links=["settings"],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        theme=style.theme(),
        css=style.CSS,
    )
    print(f"mmaccel demo on {url} (Ctrl+C stops it)", flush=True)
    if wait:
        blocks.block_thread()  # until Ctrl+C
        frame.runs.close()
    return blocks
