"""Draw one prompt for a visitor, accelerated and, to compare, also plainly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mmaccel.adapter import find_adapter
from mmaccel.comparison.trial import trial_of
from mmaccel.errors import UnsupportedTargetError
from mmaccel.image.generation import ImageSettings, Painted, Painter, check_prompts
from mmaccel.image.pipeline_painter import PipelinePainter
from mmaccel.report import Report
from mmaccel.session import Session, accelerate

from ..looks.board import ACCELERATED, PLAIN, film
from ..models import Models
from ..runs import Run
from .choice import Choice
from .passes import Passes


@dataclass(frozen=True)
class ImageRequest:
    """A picture that a visitor asked for; `settings` has the seed of `choice`."""

    prompt: str
    choice: Choice
    settings: ImageSettings
    compare: bool = False


@dataclass(frozen=True)
class Drawn:
    """What a run gave.

    Attributes
    ----------
    plain
        The plain model's picture with the same seed, where it was asked for.
    cost
        What the speed costs in quality, in plain words; empty without a plain picture.
    computed
        Which pass settled each token, and how many passes computed it; None where the model does not tell.
    film
        HTML of both pictures as they came to be; empty without a plain picture.
    """

    picture: Image.Image
    plain: Image.Image | None
    report: Report
    quality: str
    cost: str
    computed: Image.Image | None
    film: str


def draw(models: Models, run: Run, request: ImageRequest) -> Drawn:
    """Do what a visitor asked for; everything is off the model again afterwards."""
    with models.borrow("image", request.choice.model, run) as shared:
        painter: Painter = shared.loaded
        if isinstance(painter, PipelinePainter):
            raise UnsupportedTargetError(
                f"{request.choice.model} is a pipeline of masked pictures, which this tab cannot watch: choose another"
                " model"
            )
        check_prompts(painter, [request.prompt])
        with accelerate(painter.target, *request.choice.methods, preset=request.choice.preset) as session:
            # How wide a window may be is measured once for a preset, and not for every visitor.
            preset = request.choice.preset
            learned = shared.memory.setdefault(preset, {}) if preset else {}
            session.memory.update(learned)
            if request.compare and not learned:
                _warm_up(run, painter, session, request)
            passes, before = Passes(_tokens(session)), Passes(_tokens(session))
            plain = _plain(run, painter, session, request, before) if request.compare else None
            with run.stage(ACCELERATED), passes.watch(painter.target, run):
                painted = painter.paint(session, [request.prompt], request.settings)
            learned.update(session.memory)
        quality, cost = _quality(run, painter, request, session, plain, painted) if plain else ("", "")
        with run.stage("draw"):
            layout = session.adapter.layout()
            computed = passes.picture(layout) if layout is not None else None
            appeared = _film(layout, ((PLAIN, plain, before), (ACCELERATED, painted, passes))) if plain else ""
        drawn = plain.pictures[0] if plain else None
        return Drawn(painted.pictures[0], drawn, session.report, quality, cost, computed, appeared)


def _warm_up(run: Run, painter: Painter, session: Session, request: ImageRequest) -> None:
    """A run that is discarded, as `mmaccel compare` has one: a session's first one also measures the model."""
    with run.stage("warm up"), Passes(_tokens(session)).watch(painter.target, run):
        painter.generate(session, [request.prompt], request.settings)


def _plain(run: Run, painter: Painter, session: Session, request: ImageRequest, passes: Passes) -> Painted:
    with run.stage(PLAIN), session.baseline() as target, passes.watch(target, run):
        painted = painter.paint(target, [request.prompt], request.settings)
    session.report.baseline_seconds = painted.token_seconds  # the report's own time has no decoding in it either
    return painted


def _tokens(session: Session) -> int:
    layout: Any = session.adapter.layout()
    return layout.length if layout is not None else 0


def _film(layout: Any, runs: Sequence[tuple[str, Any, Passes]]) -> str:
    if layout is None:
        return ""
    return film([(name, made.pictures[0], passes.seconds(layout)) for name, made, passes in runs], layout.columns)


def _quality(
    run: Run, painter: Painter, request: ImageRequest, session: Session, plain: Painted, painted: Painted
) -> tuple[str, str]:
    """What `mmaccel compare` measures of a picture beside the plain one: for the report, and in plain words."""
    with run.stage("measure"):
        inputs = painter.inputs([request.prompt], request.settings)
        trial = trial_of(find_adapter(painter.target), inputs, painter.processor)
        own, other = trial.judge(plain.tokens, plain.tokens), trial.judge(plain.tokens, painted.tokens)
    lines = [f"  same        {other['same']:.0%} of the tokens are those of the plain picture"]
    likely = ""
    if "surprise" in other:  # nats a token: the mean chance of a token is e to the power of minus that
        fast, slow = (math.exp(-found["surprise"]) for found in (other, own))
        likely = (
            f"the plain model would have drawn each token with a chance of {fast:.0%}, of its own picture {slow:.0%}"
        )
        lines.insert(0, f"  quality     {likely}, measured")
    return "\n".join(lines), _cost(session.report.exact, other["same"], likely)


def _cost(exact: bool, same: float, likely: str) -> str:
    """What a picture costs in quality, in plain words.

    Examples
    --------
    >>> _cost(False, 0.5, "")
    'Lossy: 50% of its tokens are those of the plain picture.'
    """
    if same == 1:
        return "The very same picture, token for token: nothing is lost."
    if exact:
        return "Exact: another picture, as likely as the plain one, like that of another seed. Nothing is lost."
    return f"Lossy: {same:.0%} of its tokens are those of the plain picture{likely and f'; {likely}'}."
