"""The controls and results that look the same in every tab."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from mmaccel.comparison.difference import marked
from mmaccel.presets import absent_of, presets_of
from mmaccel.report import Report, passes

from ..frame import Frame, Work
from ..runs import Run
from .board import ACCELERATED, PLAIN, Scoreboard, ratio

Parts = Sequence[gr.components.Component]

PRESET_NOTE = "exact leaves the output of the model as it is; the others trade a little quality, as measured, for speed"
NOT_MEASURED = "No speed-up is claimed without a plain run beside it: press Compare."
ONE_RUN_EACH = (
    "One run of each on this machine, in sequence, since two at once would slow each other;"
    " mmaccel compare takes medians of several."
)


@dataclass(frozen=True)
class Buttons:
    """What starts the work of a tab, with or without a plain run beside it."""

    compare: gr.Button
    accelerated: gr.Button

    def connect(
        self, frame: Frame, work: Work, inputs: Parts, outputs: Parts, alone: Sequence[Any] = (), both: Any = None
    ) -> None:
        """Let them call ``work(compare, run, *values of inputs)``; events of `alone` and `both` start it too."""
        compared = [self.compare.click, *([both] if both else [])]
        frame.connect([self.accelerated.click, *alone], partial(work, False), inputs, outputs)
        frame.connect(compared, partial(work, True), inputs, outputs, lanes=(PLAIN, ACCELERATED))


def buttons(frame: Frame) -> Buttons:
    """Compare, Accelerated, and Stop, which is connected already."""
    with gr.Row(elem_classes="buttons"):
        compare = gr.Button("Compare", variant="primary", min_width=90)
        accelerated = gr.Button("Accelerated", min_width=90)
        stop = gr.Button("Stop", min_width=70)
    frame.connect_stop(stop)
    return Buttons(compare, accelerated)


def board() -> gr.HTML:
    """Where runs race, and what they gave: the first output of a tab."""
    return gr.HTML("", label="Race", elem_classes="board")


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


def advanced(frame: Frame, kind: str, example: str, seeded: bool = True, note: str | None = None) -> Advanced:
    """Seed (unless nothing is drawn), model with a note, and own methods; called inside the tab's own accordion."""
    names = frame.models.names(kind)
    seed = optional_number("Seed", "random", seeded)
    model = gr.Dropdown(names, value=names[0], label="Model", info=note, allow_custom_value=frame.models.any_model)
    method = gr.Textbox(
        label="Own methods, instead of the preset",
        info="as on the command line, one per line; mmaccel methods lists them",
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

    details: gr.Column
    report: gr.Code
    seed: gr.Textbox
    stages: gr.HTML
    code: gr.Code

    @property
    def outputs(self) -> list[Any]:
        return [self.details, self.report, self.seed, self.stages, self.code]

    def values(self, run: Run, seed: int | str, report: Report | str, code: str, quality: str = "") -> list[object]:
        """Values of `outputs`, in their order; `quality` are lines below the report."""
        told = report if isinstance(report, str) else report_text(report, quality)
        return [gr.update(visible=True), told, str(seed), stage_table(run.stages), code]


def results(seeded: bool = True) -> Results:
    """The report, the times of the stages, and the code; invisible until a run ends."""
    with gr.Column(visible=False) as details:
        with gr.Row():
            with gr.Column(scale=3, min_width=300):
                report = gr.Code(
                    label="Report", language=None, interactive=False, show_line_numbers=False, lines=3, wrap_lines=True
                )
            with gr.Column(scale=2, min_width=240):
                seed = gr.Textbox("", label="Used seed", interactive=False, placeholder="none yet", visible=seeded)
                stages = gr.HTML("", label="Stages", elem_classes="stages")
        code = gr.Code(
            label="Copy as Python",
            language="python",
            interactive=False,
            show_line_numbers=False,
            lines=3,
            wrap_lines=True,
        )
    return Results(details, report, seed, stages, code)


def verdict(report: Report, cost: str, film: str = "") -> str:
    """The board of a run that is over: the measured gain in large type, and what it costs."""
    if report.baseline_seconds is None:
        return Scoreboard(f"{report.wall_seconds:.2f} s", saved(report), said=NOT_MEASURED).page()
    times = ((PLAIN, report.baseline_seconds), (ACCELERATED, report.wall_seconds))
    gain = ratio(report.baseline_seconds, report.wall_seconds)
    return Scoreboard(gain, cost, times, said=ONE_RUN_EACH, film=film).page()


def saved(report: Report) -> str:
    """What a run did less than a plain one, which is counted and needs no plain run."""
    if report.plain_forwards:
        return f"{passes(report.forwards)} passes of the model instead of {passes(report.plain_forwards)}."
    if report.plain_visual_tokens:
        return f"{report.visual_tokens:,} visual tokens instead of {report.plain_visual_tokens:,}."
    if report.plain_keys:
        return f"{report.keys / report.plain_keys:.0%} of the keys are read."
    return "\n".join(report.warnings)


def report_text(report: Report, quality: str = "") -> str:
    """A report with the measured quality below; what a Python user would have to type is said by the board instead."""
    lines = [line for line in str(report).splitlines() if not line.startswith("  speed-up    not measured")]
    return "\n".join([*lines, *([quality] if quality else [])])


def stage_table(stages: Mapping[str, float]) -> str:
    """Seconds of each stage, with a bar for its share."""
    if not stages:
        return ""
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
        elem_classes="plot",
    )


def keep_examples(component: gr.components.Component) -> None:
    """Keep the copies that Gradio made of example files, which it would delete like those of visitors."""
    component.keep_in_cache.update(component.temp_files)


def both_texts(plain: str | None, accelerated: str, alone: str = "") -> str:
    """Two texts with what differs marked, or that they are the same; `alone` where there is no plain one."""
    if plain is None:
        return alone
    if plain == accelerated:
        return f"<p>Same answer, word for word: <b>{html.escape(plain)}</b></p>"
    gone, new = marked(plain, accelerated)
    return f"<p>Plain: {gone}</p><p>Accelerated: {new}</p>"
