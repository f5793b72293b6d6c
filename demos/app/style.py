"""Looks of the app: system fonts only, so that no page asks another server for anything."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

CSS = """
.gradio-container { width: 100%; max-width: 1180px !important; margin: 0 auto; }
.gradio-container main { width: 100%; }
.buttons { flex-wrap: nowrap; }
.buttons button { min-width: 0 !important; padding-left: 8px; padding-right: 8px; font-size: 15px; }
@media (max-width: 480px) { .tab-container button { padding: 0 7px !important; font-size: 14px; } }
@media (max-width: 480px) { .buttons { gap: 8px; } .buttons button { font-size: 13px; } }
table.stages { width: 100%; border-collapse: collapse; font-size: 0.9em; }
table.stages, table.stages :is(tbody, tr, th, td) { border: none !important; }
table.stages caption { text-align: left; color: var(--body-text-color-subdued); padding-bottom: 4px; }
table.stages th { font-weight: normal; text-align: left; white-space: nowrap; padding: 2px 8px 2px 0; }
table.stages td { text-align: right; font-variant-numeric: tabular-nums; padding: 2px 0 2px 8px; }
table.stages td.bar { width: 100%; padding: 2px 0; }
table.stages td.bar span { display: block; height: 10px; border-radius: 3px; background: var(--color-accent); }
.words { min-height: 12em; max-height: 26em; overflow-y: auto; font-size: 1.1em; }
.words p { margin: 0 0 6px; }
.words .time, .words .unstable, .words .remark { color: var(--body-text-color-subdued); }
.words .time { font-size: 0.8em; font-variant-numeric: tabular-nums; margin-right: 6px; }
.difference del { background: color-mix(in srgb, crimson 25%, transparent); }
.difference ins { background: color-mix(in srgb, seagreen 30%, transparent); text-decoration: none; }
.slider-wrap [data-testid="slider"]:focus-visible { outline: 2px solid var(--color-accent); outline-offset: 2px; }
.stages p.empty { color: var(--body-text-color-subdued); margin: 0; }
"""


def script() -> str:
    """What the page runs when it is there: keys for the image slider."""
    return Path(__file__).with_name("slider.js").read_text(encoding="utf-8")


def theme() -> gr.Theme:
    """Gradio's own, without fonts from elsewhere."""
    found = gr.themes.Default(primary_hue="blue", font=SANS, font_mono=MONO)
    readable = {"body_text_color_subdued": "*neutral_600", "body_text_color_subdued_dark": "*neutral_300"}
    info = {"block_info_text_color": "*neutral_600", "block_info_text_color_dark": "*neutral_300"}
    return found.set(**readable, **info)
