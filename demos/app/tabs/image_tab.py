"""The image tab."""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr

from mmaccel.files.pictures import BAR, GAP, LINE, SMALLEST, enlarged
from mmaccel.image.generation import ImageSettings

from ..frame import Frame
from ..limits import Limits, number
from ..looks import panels
from ..looks.gallery import Card, gallery, sample
from ..runs import Run
from .choice import Choice
from .code import image_code
from .image_run import Drawn, ImageRequest, draw

HEIGHT = 420  # pixels
OWN = "the model's own"
# What the cards ask for, and where its picture is on the model's sheet of samples.
SAMPLES = {
    "big red heart on yellow": 0,
    "smiling face with sunglasses": 2,
    "big dog face on pink": 5,
    "rainbow on white": 6,
    "sunflower on purple": 7,
    "alien on purple": 14,
    "guitar": 11,
    "small sailboat on blue, center": 13,
}


def build(frame: Frame) -> None:
    """Prompt, presets and buttons, then the board, the picture, the gallery, the report and the code."""
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            prompt = gr.Textbox(label="Prompt", value=next(iter(SAMPLES)), max_lines=6)
            controls = panels.controls(frame, "image", "janus", "exact")
            with gr.Accordion("Advanced", open=False):
                advanced = panels.advanced(frame, "image", "image.ZipAR:window=2,verify=true")
                guidance = panels.optional_number("Guidance scale", OWN)
                temperature = panels.optional_number("Temperature", OWN)
                top_k = panels.optional_number("Top-k", OWN)
        with gr.Column(scale=2, min_width=300):
            board = panels.board()
            picture, slider = _empty_pictures()
            picked = gallery(_cards(), [prompt])
            results = panels.results()
            computed = panels.heat_map()
    inputs = [prompt, controls.preset, *vars(advanced).values(), guidance, temperature, top_k]
    outputs = [board, picture, slider, computed, *results.outputs]
    controls.buttons.connect(frame, partial(_work, frame, results), inputs, outputs, [prompt.submit], picked)


def _empty_pictures() -> tuple[gr.Image, gr.ImageSlider]:
    """Where the picture alone goes, and where both go."""
    look: dict[str, Any] = {
        "interactive": False,
        "visible": False,
        "height": HEIGHT,
        "format": "png",
        "buttons": ["download", "fullscreen"],
    }
    picture = gr.Image(label="Accelerated", **look)
    return picture, gr.ImageSlider(label="Plain (left), accelerated (right)", max_height=HEIGHT, **look)


def _cards() -> list[Card]:
    wide = SMALLEST + GAP
    high = wide + BAR + LINE  # a text on the sheet has two lines
    places = {prompt: (place % 4 * wide, place // 4 * high + BAR) for prompt, place in SAMPLES.items()}
    return [Card(prompt, sample("tiny-janus", *place, SMALLEST), (prompt,)) for prompt, place in places.items()]


def _work(frame: Frame, results: panels.Results, compare: bool, run: Run, *values: Any) -> list[Any]:
    request = asked(frame.limits, compare, *values)
    drawn = draw(frame.models, run, request)
    told = results.values(run, request.choice.seed, drawn.report, image_code(request, frame.models), drawn.quality)
    computed = gr.update(value=drawn.computed, visible=drawn.computed is not None)
    return [panels.verdict(drawn.report, drawn.cost, drawn.film), *_pictures(drawn), computed, *told]


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
    settings = ImageSettings(
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
