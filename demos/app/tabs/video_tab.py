"""The video tab."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from PIL import Image

from mmaccel.files import clips
from mmaccel.files.pictures import BAR, GAP, SMALLEST
from mmaccel.video.generation import VideoSettings

from ..frame import Frame
from ..limits import Limits, number
from ..looks import panels
from ..looks.gallery import Card, fitting, gallery, sample
from ..runs import Run
from .choice import Choice
from .code import video_code
from .video_run import Shot, VideoRequest, shoot

HEIGHT = 360  # pixels
OWN = "the pipeline's own"
FAR_NOTE = "tiny-far draws block after block and has no preset: give it video.RollingContext:blocks=2 and 31 frames"
# What the cards ask for, and its row and frame on the model's sheet of samples.
SAMPLES = {
    "rocket moves up, pizza stays, blue background": (0, 4),
    "soccer ball moves right, green background": (1, 4),
    "penguin moves left, star moves right, white background": (2, 2),
    "red heart stays, gray background": (4, 2),
    "robot moves down, sunflower moves up, purple background": (5, 6),
    "hamburger moves left, mushroom stays, green background": (6, 5),
}
SIDE = 128  # pixels of a frame there
DRAWING = "tiny-unet"
# What the cards for this model ask for, and which picture of its sheet it is.
DRAWN = {
    "big rocket on blue": 0,
    "big pizza on green": 2,
    "big soccer ball on yellow": 4,
    "small sunflower on purple, center": 5,
    "big robot on orange": 6,
    "small christmas tree on gray, top right": 7,
}


def build(frame: Frame) -> None:
    """Prompt, presets and buttons, then the board, the clip, the gallery, the report, the code and the trace."""
    cards = _cards()
    first = fitting(cards, frame.models.names("video")[0])[0]
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            prompt = gr.Textbox(label="Prompt", value=first.text, max_lines=6)
            controls = panels.controls(frame, "video", "diffusion transformer", "balanced")
            with gr.Accordion("Advanced", open=False):
                advanced = panels.advanced(frame, "video", "video.HeterogeneousSteps:budget=0.4", note=FAR_NOTE)
                names = ("Steps", "Frames", "Height in pixels", "Width in pixels", "Guidance scale")
                numbers = [panels.optional_number(name, OWN) for name in names]
        with gr.Column(scale=2, min_width=300):
            board = panels.board()
            look: Any = {"show_label": False, "interactive": False, "visible": False, "height": HEIGHT}
            clip = gr.Video(label="Clip", autoplay=True, loop=True, **look)
            picture = gr.Image(label="Picture", format="png", buttons=["download", "fullscreen"], **look)
            picked = gallery(cards, [prompt], advanced.model)
            results = panels.results()
            computed = panels.heat_map()
    inputs = [prompt, controls.preset, *vars(advanced).values(), *numbers]
    outputs = [board, clip, picture, computed, *results.outputs]
    controls.buttons.connect(frame, partial(_work, frame, results, clip), inputs, outputs, [prompt.submit], picked)


def _cards() -> list[Card]:
    high = SIDE + BAR + GAP
    places = {prompt: (column * SIDE, row * high + BAR) for prompt, (row, column) in SAMPLES.items()}
    filmed = [Card(prompt, sample("tiny-wan", *place, SIDE), (prompt,)) for prompt, place in places.items()]
    cell, high = SMALLEST + GAP, SMALLEST + BAR + GAP
    places = {prompt: (place % 4 * cell, place // 4 * high + BAR) for prompt, place in DRAWN.items()}
    drawn = [Card(prompt, sample(DRAWING, *place, SMALLEST), (prompt,), DRAWING) for prompt, place in places.items()]
    return filmed + drawn


def _work(frame: Frame, results: panels.Results, clip: gr.Video, compare: bool, run: Run, *values: Any) -> list[Any]:
    request = asked(frame.limits, compare, *values)
    shot = shoot(frame.models, run, request)
    with run.stage("draw"):
        made = _made(clip, shot)
    code = video_code(request, frame.models, shot.rate, shot.field)
    told = results.values(run, request.choice.seed, shot.report, code, shot.quality)
    computed = gr.update(value=shot.computed, visible=shot.computed is not None)
    return [panels.verdict(shot.report, shot.cost), *made, computed, *told]


def _made(clip: gr.Video, shot: Shot) -> list[Any]:
    """What is shown as a clip, and what as a picture."""
    if shot.field == "images":
        return [gr.update(value=None, visible=False), gr.update(value=shot.shown[0], visible=True)]
    file = playable(clip, shot.shown, shot.rate)
    return [gr.update(value=file, visible=True), gr.update(value=None, visible=False)]


def asked(
    limits: Limits,
    compare: bool,
    prompt: Any,
    preset: Any,
    seed: Any,
    model: Any,
    method: Any,
    steps: Any,
    frames: Any,
    height: Any,
    width: Any,
    guidance: Any,
) -> VideoRequest:
    """A checked request from the values of the tab."""
    choice = Choice.of(limits, model, preset, method, seed)
    settings = VideoSettings(
        seed=choice.seed,
        steps=number("steps", steps, 1, limits.steps),
        frames=number("frames", frames, 1, limits.frames),
        height=number("height", height, 16, limits.side),
        width=number("width", width, 16, limits.side),
        guidance=number("guidance scale", guidance, 0, 100, whole=False),
    )
    return VideoRequest(limits.prompt(prompt), choice, settings, compare)


def playable(player: gr.Video, frames: list[Image.Image], rate: float) -> str | None:
    """A clip as a file in the player's own cache, from where it is deleted by age."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        clips.save(frames, path, rate)
        return player.move_resource_to_block_cache(path)
