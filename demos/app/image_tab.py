"""The image tab."""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr

from mmaccel import zoo
from mmaccel.image.generation import Settings
from mmaccel.pictures import enlarged

from . import panels
from .choice import Choice
from .code import image_code
from .frame import Frame
from .image_run import Drawn, ImageRequest, draw
from .limits import Limits, number
from .runs import Run

EXAMPLES = 4
HEIGHT = 420  # pixels
OWN = "the model's own"
SAME_LAW = "The pictures differ as two samples of one prompt do: the method keeps the law, not the noise."


def build(frame: Frame) -> None:
    """Prompt, presets and buttons, then the picture, its report and the code; inside the tab."""
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            prompt = gr.Textbox(label="Prompt", value="big red heart on yellow", max_lines=6)
            panels.examples(prompt, zoo.prompts("tiny-janus", EXAMPLES))
            controls = panels.controls(frame, "image", "janus", "exact")
            with gr.Accordion("Advanced", open=False):
                advanced = panels.advanced(frame, "image", "image.ZipAR:window=2,verify=true")
                guidance = panels.optional_number("Guidance scale", OWN)
                temperature = panels.optional_number("Temperature", OWN)
                top_k = panels.optional_number("Top-k", OWN)
        with gr.Column(scale=3, min_width=300):
            look: dict[str, Any] = {
                "interactive": False,
                "height": HEIGHT,
                "format": "png",
                "buttons": ["download", "fullscreen"],
            }
            picture = gr.Image(label="Accelerated", **look)
            slider = gr.ImageSlider(label="Plain (left), accelerated (right)", visible=False, max_height=HEIGHT, **look)
            results = panels.results()
            computed = panels.heat_map()
    inputs = [prompt, controls.preset, *vars(advanced).values(), guidance, temperature, top_k]
    outputs = [picture, slider, computed, *results.outputs]
    work = partial(_work, frame, results)
    controls.buttons.connect(frame, work, inputs, outputs, [picture, slider], prompt.submit)


def _work(frame: Frame, results: panels.Results, compare: bool, run: Run, *values: Any) -> list[Any]:
    request = asked(frame.limits, compare, *values)
    drawn = draw(frame.models, run, request)
    note = SAME_LAW if compare and drawn.report.exact else ""
    told = results.values(run, request.choice.seed, drawn.report, image_code(request), drawn.quality, note)
    return [*_pictures(drawn), gr.update(value=drawn.computed, visible=drawn.computed is not None), *told]


def asked(
    limits: Limits,
    compare: bool,
    prompt: Any,
    preset: Any,
    seed: Any,
    model: Any,
    method: Any,
    guidance: Any,
    temperature: Any,
    top_k: Any,
) -> ImageRequest:
    """A checked request from the values of the tab."""
    choice = Choice.of(limits, model, preset, method, seed)
    settings = Settings(
        seed=choice.seed,
        guidance=number("guidance scale", guidance, 0, 100, whole=False),
        temperature=number("temperature", temperature, 0.01, 100, whole=False),
        top_k=number("top-k", top_k, 0, 10**6),
    )
    return ImageRequest(limits.prompt(prompt), choice, settings, compare)


def _pictures(drawn: Drawn) -> list[Any]:
    """The picture alone, or the slider with both."""
    if drawn.plain is None:
        return [gr.update(value=enlarged(drawn.picture), visible=True), gr.update(value=None, visible=False)]
    pair = (enlarged(drawn.plain), enlarged(drawn.picture))
    return [gr.update(value=None, visible=False), gr.update(value=pair, visible=True)]
