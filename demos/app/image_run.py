"""Draw one prompt for a visitor, accelerated and, to compare, also plainly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

from mmaccel.adapter import find_adapter
from mmaccel.comparing import trial_of
from mmaccel.image.generation import Painted, Painter, Settings, check_prompts
from mmaccel.report import Report
from mmaccel.session import Session, accelerate

from .choice import Choice
from .models import Models
from .passes import Passes
from .runs import Run


@dataclass(frozen=True)
class ImageRequest:
    """A picture that a visitor asked for; `settings` has the seed of `choice`."""

    prompt: str
    choice: Choice
    settings: Settings
    compare: bool = False


@dataclass(frozen=True)
class Drawn:
    """What a run gave.

    Attributes
    ----------
    plain
        The plain model's picture with the same seed, where it was asked for.
    computed
        Which pass settled each token, and how many passes computed it; None where the model does not tell.
    """

    picture: Image.Image
    plain: Image.Image | None
    report: Report
    quality: str
    computed: Image.Image | None


def draw(models: Models, run: Run, request: ImageRequest) -> Drawn:
    """Do what a visitor asked for; everything is off the model again afterwards."""
    with models.borrow("image", request.choice.model, run) as shared:
        painter: Painter = shared.loaded
        check_prompts(painter, [request.prompt])
        with accelerate(painter.target, *request.choice.methods, preset=request.choice.preset) as session:
            # How wide a window may be is measured once for a preset, and not for every visitor.
            preset = request.choice.preset
            learned = shared.memory.setdefault(preset, {}) if preset else {}
            session.memory.update(learned)
            if request.compare and not learned:
                _warm_up(run, painter, session, request)
            plain = _plain(run, painter, session, request) if request.compare else None
            passes = Passes(_tokens(session))
            with run.stage("accelerated"), passes.watch(painter.target, run):
                painted = painter.paint(session, [request.prompt], request.settings)
            learned.update(session.memory)
        quality = _quality(run, painter, request, plain, painted) if plain else ""
        with run.stage("draw"):
            layout = session.adapter.layout()  # type: ignore[attr-defined]
            computed = passes.picture(layout) if layout is not None else None
        before = plain.pictures[0] if plain else None
        return Drawn(painted.pictures[0], before, session.report, quality, computed)


def _warm_up(run: Run, painter: Painter, session: Session, request: ImageRequest) -> None:
    """A run that is discarded, as `mmaccel compare` has one: a session's first one also measures the model."""
    with run.stage("warm up"), Passes(_tokens(session)).watch(painter.target, run):
        painter.generate(session, [request.prompt], request.settings)


def _plain(run: Run, painter: Painter, session: Session, request: ImageRequest) -> Painted:
    with run.stage("plain"), session.baseline() as target, Passes(_tokens(session)).watch(target, run):
        painted = painter.paint(target, [request.prompt], request.settings)
    session.report.baseline_seconds = painted.token_seconds  # the report's own time has no decoding in it either
    return painted


def _tokens(session: Session) -> int:
    layout: Any = session.adapter.layout()  # type: ignore[attr-defined]
    return layout.length if layout is not None else 0


def _quality(run: Run, painter: Painter, request: ImageRequest, plain: Painted, painted: Painted) -> str:
    """What `mmaccel compare` measures of a picture beside the plain one."""
    with run.stage("measure"):
        inputs = painter.inputs([request.prompt], request.settings)
        trial = trial_of(find_adapter(painter.target), inputs, painter.processor)
        own, other = trial.judge(plain.tokens, plain.tokens), trial.judge(plain.tokens, painted.tokens)
    said = f"  same        {other['same']:.0%} of the tokens are those of the plain picture"
    if "surprise" in other:
        said = (
            f"  quality     {other['surprise']:.2f} nats per token of surprise, plain {own['surprise']:.2f}, measured\n"
            + said
        )
    return said
