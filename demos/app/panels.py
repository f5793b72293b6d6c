"""The controls and results that look the same in every tab."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from mmaccel.presets import absent_of, presets_of
from mmaccel.report import Report

from .frame import Frame, Work
from .runs import Run

Parts = Sequence[gr.components.Component]

PRESET_NOTE = "exact keeps the model's own output or its law; the others trade a measured bit of quality for speed"
NOT_MEASURED = "No speed-up is claimed without a plain run beside it: press Compare."
ONE_RUN_EACH = "One run of each on this machine, in this order; `mmaccel compare` takes medians of several."


@dataclass(frozen=True)
class Buttons:
    """What starts the work of a tab, with or without a plain run beside it."""

    accelerated: gr.Button
    compare: gr.Button

    def connect(self, frame: Frame, work: Work, inputs: Parts, outputs: Parts, progress_on: Any, *more: Any) -> None:
        """Let them call ``work(compare, run, *values of inputs)``; `more` events start the accelerated run too."""
        for compare, triggers in ((False, [self.accelerated.click, *more]), (True, [self.compare.click])):
            frame.connect(triggers, partial(work, compare), inputs, outputs, progress_on=progress_on)


def buttons(frame: Frame) -> Buttons:
    """Accelerated, Compare, and Stop, which is connected already."""
    with gr.Row(elem_classes="buttons"):
        accelerated = gr.Button("Accelerated", variant="primary", min_width=90)
        compare = gr.Button("Compare", min_width=90)
        stop = gr.Button("Stop", variant="stop", min_width=70)
    frame.connect_stop(stop)
    return Buttons(accelerated, compare)


@dataclass(frozen=True)
class Controls:
    """What the tabs with presets are steered with."""

    preset: gr.Radio
    buttons: Buttons


def controls(frame: Frame, modality: str, family: str, default: str) -> Controls:
    """The preset radio and the buttons."""
    known = list(presets_of(modality, family))
    missing = "".join(f"; no {name}: {why}" for name, why in absent_of(modality, family).items())
    preset = gr.Radio(known, value=default, label="Preset", info=PRESET_NOTE + missing)
    return Controls(preset, buttons(frame))


@dataclass(frozen=True)
class Advanced:
    """Settings that are closed by default and the same in every tab."""

    seed: gr.Textbox
    model: gr.Dropdown
    method: gr.Textbox


def advanced(frame: Frame, kind: str, example: str, seeded: bool = True) -> Advanced:
    """Seed (unless nothing is drawn), model and own methods; called inside the tab's own accordion."""
    names = frame.models.names(kind)
    seed = optional_number("Seed", "random", seeded)
    model = gr.Dropdown(names, value=names[0], label="Model", allow_custom_value=frame.models.any_model)
    method = gr.Textbox(
        label="Own methods instead of the preset",
        info="as on the command line, one a line; mmaccel methods lists them",
        placeholder=example,
        lines=1,
        max_lines=4,
    )
    return Advanced(seed, model, method)


def optional_number(label: str, default: str, visible: bool = True) -> gr.Textbox:
    """A field for a number that may stay empty; Gradio's own field for numbers turns empty into 0."""
    keyboard: Any = {"inputmode": "decimal"}
    return gr.Textbox(label=label, placeholder=default, max_lines=1, html_attributes=keyboard, visible=visible)


@dataclass(frozen=True)
class Results:
    """What every tab tells of a run, below its output."""

    report: gr.Code
    note: gr.Markdown
    seed: gr.Textbox
    stages: gr.HTML
    code: gr.Code

    @property
    def outputs(self) -> list[gr.components.Component]:
        return [self.report, self.note, self.seed, self.stages, self.code]

    def values(self, run: Run, seed: int, report: Report, code: str, quality: str = "", note: str = "") -> list[object]:
        """Values of `outputs`, in their order: `quality` are lines below the report, and `note` a remark on them."""
        claim = ONE_RUN_EACH if report.speedup is not None else NOT_MEASURED
        said = f"{note} {claim}".strip()
        return [report_text(report, quality), said, str(seed), stage_table(run.stages), code]


def results(seeded: bool = True) -> Results:
    """The report, the times of the stages, and the code, empty until a run ends."""
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            report = gr.Code(
                label="Report", language=None, interactive=False, show_line_numbers=False, lines=3, wrap_lines=True
            )
            note = gr.Markdown("", elem_classes="note")
        with gr.Column(scale=2, min_width=240):
            seed = gr.Textbox("", label="Used seed", interactive=False, placeholder="none yet", visible=seeded)
            stages = gr.HTML(stage_table({}), label="Stages", elem_classes="stages")
    code = gr.Code(
        label="Copy as Python",
        language="python",
        interactive=False,
        show_line_numbers=False,
        lines=3,
        wrap_lines=True,
    )
    return Results(report, note, seed, stages, code)


def report_text(report: Report, quality: str = "") -> str:
    """A report with the measured quality below; what a Python user would have to type is said by a note instead."""
    lines = [line for line in str(report).splitlines() if not line.startswith("  speed-up    not measured")]
    return "\n".join([*lines, *([quality] if quality else [])])


def stage_table(stages: Mapping[str, float]) -> str:
    """Seconds of each stage, with a bar for its share."""
    if not stages:
        return '<p class="empty">Times of the stages appear here.</p>'
    longest = max(stages.values()) or 1.0
    rows = "".join(_stage(name, seconds, seconds / longest) for name, seconds in stages.items() if seconds >= 0.005)
    return f'<table class="stages"><caption>Seconds of each stage</caption>{rows}</table>'


def _stage(name: str, seconds: float, share: float) -> str:
    bar = f'<span style="width: {max(1.0, 100 * share):.0f}%"></span>'
    return f'<tr><th scope="row">{html.escape(name)}</th><td class="bar">{bar}</td><td>{seconds:.2f}</td></tr>'


def heat_map() -> gr.Image:
    """A picture of what was computed, without a label that would hide its title; invisible until there is one."""
    return gr.Image(
        label="What was computed",
        show_label=False,
        interactive=False,
        visible=False,
        format="png",
        buttons=["download", "fullscreen"],
    )


def examples(prompt: gr.Textbox, prompts: Sequence[str]) -> None:
    """Buttons that put an example into the prompt."""
    gr.Examples([[text] for text in prompts], [prompt], label="Examples", api_visibility="private")


def keep_examples(component: gr.components.Component) -> None:
    """Keep the copies that Gradio made of example files, which it would delete like those of visitors."""
    component.keep_in_cache.update(component.temp_files)
