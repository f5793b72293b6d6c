"""Fill a canvas about a visitor's picture, accelerated and, to compare, also plainly."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mmaccel.canvas.arguments import ONE_BY_ONE
from mmaccel.canvas.command import WARM
from mmaccel.canvas.commits import Commits
from mmaccel.canvas.generation import inputs_of
from mmaccel.comparison.difference import alike
from mmaccel.errors import PromptError, UnsupportedTargetError
from mmaccel.report import Report
from mmaccel.session import accelerate

from ..looks.board import ACCELERATED, PLAIN
from ..models import Models
from ..runs import Run
from .choice import Choice


@dataclass(frozen=True)
class CanvasRequest:
    """A text about a picture that a visitor asked for.

    Attributes
    ----------
    file
        The picture's name, for the code.
    gen_length
        Tokens of the canvas.
    threshold
        Chance from which on the pipeline itself commits a token.
    """

    question: str
    choice: Choice
    file: str
    gen_length: int
    threshold: float = ONE_BY_ONE
    compare: bool = False


@dataclass(frozen=True)
class Filled:
    """What a run gave.

    Attributes
    ----------
    plain
        The plain pipeline's text, where it was asked for.
    cost
        What the speed costs in quality, in plain words; empty without a plain text.
    committed
        The text, each token on the colour of the step that committed it.
    """

    text: str
    plain: str | None
    report: Report
    cost: str
    committed: Image.Image


def fill(models: Models, run: Run, request: CanvasRequest, picture: Image.Image) -> Filled:
    """Do what a visitor asked for; everything is off the pipeline again afterwards."""
    if not request.question:
        raise PromptError("the question is empty: ask for something, such as 'list all things'")
    with models.borrow("canvas", request.choice.model, run) as shared:
        pipe, processor = shared.loaded
        if processor is None:
            raise UnsupportedTargetError(
                f"{request.choice.model} draws pictures, and cannot be asked about one: choose another model"
            )
        pipe.set_progress_bar_config(disable=True)
        with run.stage("prepare"):
            inputs = inputs_of(processor, picture, request.question)
        with accelerate(pipe, *request.choice.methods, preset=request.choice.preset) as session:
            plain = None
            if request.compare:
                shared.warm(run, lambda: pipe(**inputs, gen_length=WARM))
                with run.stage(PLAIN), session.baseline() as target:
                    plain, session.report.baseline_seconds, _ = _fill(run, target, inputs, request)
            with run.stage(ACCELERATED):
                text, _, commits = _fill(run, session, inputs, request)
        with run.stage("draw"):
            committed = commits.picture(pipe.tokenizer)
        cost = "" if plain is None else _cost(plain, text)
        return Filled(text, plain, session.report, cost, committed)


class _Watched(Commits):
    """Commits that are told to a visitor, and that end the run when they left."""

    def __init__(self, run: Run, length: int) -> None:
        super().__init__()
        self.run, self.length = run, length

    def callback_fn(self, pipeline: Any, step_index: int, timesteps: Any, callback_kwargs: dict[str, Any]) -> Any:
        found = super().callback_fn(pipeline, step_index, timesteps, callback_kwargs)
        self.run.tell(int((self.steps > 0).sum()), self.length)
        return found


def _fill(run: Run, target: Any, inputs: Any, request: CanvasRequest) -> tuple[str, float, Commits]:
    """The text, its seconds, and what was committed when."""
    commits, began = _Watched(run, request.gen_length), time.perf_counter()
    made = target(**inputs, gen_length=request.gen_length, threshold=request.threshold, callback_on_step_end=commits)
    return made.texts[0].strip(), time.perf_counter() - began, commits


def _cost(plain: str, text: str) -> str:
    """How alike both texts are, in plain words.

    Examples
    --------
    >>> _cost("two red hearts", "two red hearts")
    'The same text, word for word: nothing is lost.'
    """
    if plain == text:
        return "The same text, word for word: nothing is lost."
    return f"Another text: {alike(plain, text):.0%} of the words are those of the plain one, in their order."
