"""Looks of the app: system fonts only, so that no page asks another server for anything."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

CSS = (Path(__file__).with_name("style.css")).read_text(encoding="utf-8")


def script() -> str:
    """What the page runs when it is there: keys for the image slider."""
    return Path(__file__).with_name("slider.js").read_text(encoding="utf-8")


def theme() -> gr.Theme:
    """Gradio's own, without fonts from elsewhere."""
    found = gr.themes.Default(primary_hue="blue", font=SANS, font_mono=MONO)
    readable = {"body_text_color_subdued": "*neutral_600", "body_text_color_subdued_dark": "*neutral_300"}
    info = {"block_info_text_color": "*neutral_600", "block_info_text_color_dark": "*neutral_300"}
    return found.set(**readable, **info)
