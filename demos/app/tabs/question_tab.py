"""The video chat tab."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from PIL import Image

from mmaccel import zoo
from mmaccel.files import clips

from ..frame import Frame
from ..limits import Limits, number
from ..looks import panels
from ..looks.board import embedded
from ..looks.gallery import SIDE, Card, gallery
from ..runs import Run
from ..uploads.reading import read_clip
from .choice import Choice
from .code import question_code
from .question_run import QuestionRequest, Turn, answer

EXAMPLES, QUESTIONS_A_CLIP, EXAMPLE_SEED = 4, 4, 3
QUESTION = "what moves up?"
KEPT_NOTE = "What the language model saw: white areas were left out, orange marks several tokens merged into one."
FRAMES, NEW_TOKENS, MOST_NEW_TOKENS = 32, 32, 512
MOST_TURNS = 20
TOLD = "For models that were trained on conversations. tiny-onevision was not: ask it one question at a time."


@dataclass
class Talk:
    """What one visitor has asked about a clip, and what was answered; in their own `gr.State`."""

    clip: str = ""
    turns: list[Turn] = field(default_factory=list)

    def about(self, clip: str) -> Talk:
        """This talk, or a new one if it was about another clip."""
        return self if clip == self.clip else Talk(clip)

    def messages(self) -> list[dict[str, str]]:
        """What `gr.Chatbot` shows."""
        roles = ("user", "assistant")
        return [{"role": role, "content": said} for turn in self.turns for role, said in zip(roles, turn, strict=True)]


def build(frame: Frame) -> None:
    """Clip, question, presets and buttons, then the board, the answers, the gallery, what was kept and the code."""
    talk = gr.State(Talk())
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            clip = gr.Video(label="Clip", sources=["upload"], height=170, loop=True, elem_classes="drop")
            question = gr.Textbox(label="Question", lines=1, max_lines=4, value=QUESTION)
            controls = panels.controls(frame, "vlm", "llava_onevision", "balanced")
            with gr.Accordion("Advanced", open=False):
                advanced = panels.advanced(frame, "vlm", "vlm.HoliTom:keep=0.15", seeded=False)
                frames = panels.optional_number("Frames", str(FRAMES))
                tokens = panels.optional_number("Most new tokens", str(NEW_TOKENS))
                told = gr.Checkbox(False, label="The model is told the earlier questions and answers", info=TOLD)
        with gr.Column(scale=2, min_width=300):
            board = panels.board()
            difference = gr.HTML("", elem_classes="difference")
            chat = _chat()
            picked = _gallery(clip, question)
            note, kept = _kept()
            results = panels.results(seeded=False)
    chat.clear(Talk, None, talk, queue=False, show_progress="hidden", api_visibility="private")
    inputs = [talk, clip, question, controls.preset, *vars(advanced).values(), frames, tokens, told]
    outputs = [board, talk, chat, difference, note, kept, *results.outputs]
    controls.buttons.connect(frame, partial(_work, frame, results), inputs, outputs, [question.submit], picked)


def _chat() -> gr.Chatbot:
    look: dict[str, Any] = {"height": None, "min_height": 0, "max_height": 320, "buttons": ["copy"]}
    return gr.Chatbot(label="Answers", render_markdown=False, visible=False, **look)


def _kept() -> tuple[gr.Markdown, gr.Image]:
    """The picture of what was kept, below what it shows."""
    look: dict[str, Any] = {"show_label": False, "interactive": False, "visible": False, "buttons": ["fullscreen"]}
    return gr.Markdown(KEPT_NOTE, visible=False), gr.Image(label=KEPT_NOTE, format="webp", **look)


def _work(frame: Frame, results: panels.Results, compare: bool, run: Run, talk: Talk, *values: Any) -> list[Any]:
    clip = str(values[0] or "")
    talk = talk.about(clip)
    request = asked(frame.limits, talk, compare, *values)
    with run.stage("read"):
        video = read_clip(clip, request.frames, frame.limits, run)
    request = replace(request, frames=len(video))
    made = answer(frame.models, run, request, video)
    talk = Talk(clip, [*talk.turns, (request.question, made.answer)][-MOST_TURNS:])
    code = question_code(request, frame.models, made.told)
    told = results.values(run, request.choice.seed, made.report, code, made.quality)
    kept = [gr.update(visible=made.kept is not None), gr.update(value=made.kept, visible=made.kept is not None)]
    messages = gr.update(value=talk.messages(), visible=True)
    return [
        panels.verdict(made.report, made.cost),
        talk,
        messages,
        panels.both_texts(made.plain, made.answer),
        *kept,
        *told,
    ]


def asked(
    limits: Limits,
    talk: Talk,
    compare: bool,
    clip: Any,
    question: Any,
    preset: Any,
    seed: Any,
    model: Any,
    method: Any,
    frames: Any,
    tokens: Any,
    told: Any,
) -> QuestionRequest:
    """A checked request from the values of the tab."""
    return QuestionRequest(
        question=limits.prompt(question),
        choice=Choice.of(limits, model, preset, method, seed),
        clip=Path(clip or "").name,
        frames=number("frames", frames, 1, limits.frames) or FRAMES,
        max_side=limits.side,
        max_new_tokens=number("most new tokens", tokens, 1, MOST_NEW_TOKENS) or NEW_TOKENS,
        earlier=tuple(talk.turns) if told else (),
        compare=compare,
    )


def _gallery(clip: gr.Video, question: gr.Textbox) -> Any:
    """A few clips of the world that tiny-onevision knows, with questions that it was never asked in training."""
    cards = []
    with TemporaryDirectory() as folder:  # kept as gradio's own copies
        for number, one in enumerate(_questions(), 1):
            path = Path(folder) / f"clip-{number}.mp4"
            clips.save([Image.fromarray(picture) for picture in one.frames], path)
            copy = clip.move_resource_to_block_cache(path)
            still = Image.fromarray(one.frames[len(one.frames) // 2])
            cards.append(Card(one.question, embedded(still.resize((SIDE, SIDE))), (copy, one.question)))
        panels.keep_examples(clip)
    return gallery(cards, [clip, question])


def _questions() -> list[Any]:
    """The first question of each clip that is shown."""
    return zoo.questions("tiny-onevision", EXAMPLES * QUESTIONS_A_CLIP, EXAMPLE_SEED)[1::QUESTIONS_A_CLIP]
