"""The canvas tab: a text about a picture, filled in many places at once."""

from __future__ import annotations

import html
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from PIL import Image

from mmaccel import zoo
from mmaccel.canvas.arguments import ONE_BY_ONE, QUESTION
from mmaccel.canvas.method import MASKS

from ..frame import Frame
from ..limits import Limits, number
from ..looks import panels
from ..looks.board import embedded
from ..looks.gallery import SIDE, Card, gallery
from ..runs import Run
from ..uploads.reading import read_picture
from .canvas_run import CanvasRequest, fill
from .choice import Choice
from .code import canvas_code

LENGTH, LONGEST = 128, 512  # tokens of a canvas
EXAMPLES, EXAMPLE_SEED = 4, 5


def build(frame: Frame) -> None:
    """Picture, question, presets and buttons, then the board, the text, when it was committed, and the code."""
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            picture = gr.Image(label="Picture", sources=["upload"], height=170, elem_classes="drop")
            # Gradio would open the file itself, and say nothing but Error of what is no picture.
            vars(picture)["preprocess"] = lambda uploaded: uploaded and uploaded.path
            question = gr.Textbox(label="Question", lines=1, max_lines=4, value=QUESTION)
            controls = panels.controls(frame, "canvas", MASKS, "balanced")
            with gr.Accordion("Advanced", open=False):
                advanced = panels.advanced(frame, "canvas", "canvas.FactorCommit:factor=0.5", seeded=False)
                length = panels.optional_number("Tokens of the canvas", str(LENGTH))
                threshold = panels.optional_number("Chance from which the pipeline itself commits a token", "never")
        with gr.Column(scale=2, min_width=300):
            board = panels.board()
            text = gr.HTML("", label="Text", elem_classes="difference")
            committed = panels.heat_map()
            picked = _gallery(picture, question)
            results = panels.results(seeded=False)
    inputs = [picture, question, controls.preset, *vars(advanced).values(), length, threshold]
    outputs = [board, text, committed, *results.outputs]
    controls.buttons.connect(frame, partial(_work, frame, results), inputs, outputs, [question.submit], picked)


def _work(frame: Frame, results: panels.Results, compare: bool, run: Run, path: Any, *values: Any) -> list[Any]:
    request = asked(frame.limits, compare, path, *values)
    with run.stage("read"):
        shown = read_picture(path, frame.limits)
    made = fill(frame.models, run, request, shown)
    told = results.values(run, request.choice.seed, made.report, canvas_code(request, frame.models))
    texts = panels.both_texts(made.plain, made.text, alone=f"<p>{html.escape(made.text)}</p>")
    return [panels.verdict(made.report, made.cost), texts, gr.update(value=made.committed, visible=True), *told]


def asked(
    limits: Limits,
    compare: bool,
    path: Any,
    question: Any,
    preset: Any,
    seed: Any,
    model: Any,
    method: Any,
    length: Any,
    threshold: Any,
) -> CanvasRequest:
    """A checked request from the values of the tab."""
    own = number("chance", threshold, 0, 1, whole=False)
    return CanvasRequest(
        question=limits.prompt(question),
        choice=Choice.of(limits, model, preset, method, seed),
        file=Path(path or "").name,
        gen_length=number("tokens of the canvas", length, 1, LONGEST) or LENGTH,
        threshold=ONE_BY_ONE if own is None else own,
        compare=compare,
    )


def _gallery(picture: gr.Image, question: gr.Textbox) -> Any:
    """A few pictures of the world that tiny-canvas knows, and that it never saw in training."""
    cards = []
    with TemporaryDirectory() as folder:  # kept as gradio's own copies
        for number_, one in enumerate(zoo.questions("tiny-canvas", EXAMPLES, EXAMPLE_SEED), 1):
            path = Path(folder) / f"picture-{number_}.png"
            still = Image.fromarray(one.frames[0])
            still.save(path)
            copy = picture.move_resource_to_block_cache(path)
            things = one.answer.count("row")
            cards.append(Card(f"list all {things} things", embedded(still.resize((SIDE, SIDE))), (copy, QUESTION)))
        panels.keep_examples(picture)
    return gallery(cards, [picture, question])
