"""Answer a visitor's question about a clip, accelerated and, to compare, also plainly."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from PIL import Image
from transformers import StoppingCriteriaList

from mmaccel import vlm
from mmaccel.comparison.difference import alike
from mmaccel.errors import PromptError, SettingError
from mmaccel.report import Report
from mmaccel.session import accelerate
from mmaccel.vlm.input.processed import processed, single_bos

from ..looks.board import ACCELERATED, PLAIN
from ..models import Models
from ..runs import Run
from .choice import Choice

Turn = tuple[str, str]  # a question and its answer


@dataclass(frozen=True)
class QuestionRequest:
    """A question that a visitor asked.

    Attributes
    ----------
    clip
        The file's name, for the code; the frames are read before.
    frames
        How many frames of it the model is shown.
    max_side
        Pixels to which larger frames were scaled down.
    earlier
        Turns that the model is told before the question; most answer best without.
    """

    question: str
    choice: Choice
    clip: str
    frames: int
    max_side: int
    max_new_tokens: int
    earlier: tuple[Turn, ...] = ()
    compare: bool = False


@dataclass(frozen=True)
class Answered:
    """What a run gave.

    Attributes
    ----------
    plain
        The plain model's answer, where it was asked for.
    cost
        What the speed costs in quality, in plain words; empty without a plain answer.
    kept
        The frames with what the language model did not get under white; None where a method keeps all.
    told
        What the processor was told of the text.
    """

    answer: str
    plain: str | None
    report: Report
    quality: str
    cost: str
    kept: Image.Image | None
    told: dict[str, bool]


def answer(models: Models, run: Run, request: QuestionRequest, video: vlm.VideoFrames) -> Answered:
    """Do what a visitor asked for; everything is off the model again afterwards."""
    if not request.question:
        raise PromptError("the question is empty: ask something about the clip, such as 'what moves up?'")
    with models.borrow("vlm", request.choice.model, run) as shared:
        model, processor = shared.loaded
        with run.stage("prepare"):
            inputs, told = prepare(processor, video, request)
            inputs = inputs.to(model.device)
        with accelerate(model, *request.choice.methods, preset=request.choice.preset) as session:
            plain = None
            if request.compare:
                shared.warm(run, lambda: model.generate(**inputs, max_new_tokens=1, do_sample=False))
                with run.stage(PLAIN), session.baseline() as target:
                    plain, seconds = _generate(run, target, processor, inputs, request)
                session.report.baseline_seconds = seconds
            with run.stage(ACCELERATED):
                text, _ = _generate(run, session, processor, inputs, request)
            with run.stage("draw"):
                kept = _kept(session, video)
            quality, cost = ("", "") if plain is None else _quality(plain, text)
            return Answered(text, plain, session.report, quality, cost, kept, told)


def conversation(request: QuestionRequest) -> list[dict[str, Any]]:
    """What is said, for `apply_chat_template`: the clip comes with the first question."""
    turns: list[dict[str, Any]] = []
    for question, answered in request.earlier:
        turns.append({"role": "user", "content": [{"type": "text", "text": question}]})
        turns.append({"role": "assistant", "content": [{"type": "text", "text": answered}]})
    turns.append({"role": "user", "content": [{"type": "text", "text": request.question}]})
    turns[0]["content"].insert(0, {"type": "video"})
    return turns


def prepare(processor: Any, video: vlm.VideoFrames, request: QuestionRequest) -> tuple[Any, dict[str, bool]]:
    """Inputs of `generate`, and what the processor was told of the text."""
    text = processor.apply_chat_template(conversation(request), add_generation_prompt=True)
    return processed(processor, [text], [video]), single_bos(processor, text)


def _generate(run: Run, target: Any, processor: Any, inputs: Any, request: QuestionRequest) -> tuple[str, float]:
    """The answer and its seconds; ends when its visitor left."""
    length = inputs["input_ids"].shape[1]

    def look(tokens: Any, scores: Any, **_: Any) -> Any:
        run.tell(tokens.shape[1] - length, request.max_new_tokens)
        return tokens.new_zeros(len(tokens), dtype=bool)

    began = time.perf_counter()
    criteria: list[Any] = [look]
    stopping = StoppingCriteriaList(criteria)
    tokens = target.generate(
        **inputs, max_new_tokens=request.max_new_tokens, do_sample=False, stopping_criteria=stopping
    )
    seconds = time.perf_counter() - began
    return processor.batch_decode(tokens[:, length:], skip_special_tokens=True)[0].strip(), seconds


def _kept(session: Any, video: vlm.VideoFrames) -> Image.Image | None:
    try:
        return vlm.kept(session)[0].picture(video.frames)
    except SettingError:  # not all methods leave visual tokens out
        return None


def _quality(plain: str, text: str) -> tuple[str, str]:
    """How alike the answers are: for the report, and in plain words."""
    if plain == text:
        return (
            "  answer      the same as the plain one, word for word",
            "The same answer to this question, word for word.",
        )
    share = f"{alike(plain, text):.0%} of the words are those of the plain"
    return f"  answer      {share} one, in their order", f"Another answer: {share} answer."
