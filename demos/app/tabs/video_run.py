"""Film one prompt for a visitor, accelerated and, to compare, also plainly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from mmaccel.errors import PromptError, SettingError
from mmaccel.files import clips
from mmaccel.report import Report
from mmaccel.session import Session, accelerate
from mmaccel.video import quality
from mmaccel.video.families.rates import USUAL, rate_of
from mmaccel.video.generation import Filmed, VideoSettings, briefly, film, on_step_end
from mmaccel.video.trace import trace_of

from ..looks.board import ACCELERATED, PLAIN
from ..models import Models
from ..runs import Run
from .choice import Choice

# From so many dB on, a clip or a picture looks so beside another one.
LOOKS = (
    (40, "By eye the same {kind} as"),
    (30, "Small differences, seen side by side with"),
    (20, "Visible differences to"),
    (0, "Another {kind} than"),
)


@dataclass(frozen=True)
class VideoRequest:
    """A clip that a visitor asked for; `settings` has the seed of `choice`."""

    prompt: str
    choice: Choice
    settings: VideoSettings
    compare: bool = False


@dataclass(frozen=True)
class Shot:
    """What a run gave.

    Attributes
    ----------
    frames
        The accelerated clip alone.
    shown
        For people: enlarged, and in one clip with the plain one where that was asked for, so that both play in step.
    cost
        What the speed costs in quality, in plain words; empty without a plain clip.
    computed
        Which step computed which tokens; None where a method keeps no trace.
    rate
        Frames a second.
    field
        Of the pipeline's output, that has them.
    """

    frames: list[Image.Image]
    shown: list[Image.Image]
    report: Report
    quality: str
    cost: str
    computed: Image.Image | None
    rate: float = USUAL
    field: str = "frames"


def shoot(models: Models, run: Run, request: VideoRequest) -> Shot:
    """Do what a visitor asked for; everything is off the pipeline again afterwards."""
    if not request.prompt:
        raise PromptError("the prompt is empty: describe the clip, such as 'rocket moves up'")
    with models.borrow("video", request.choice.model, run) as shared:
        pipe = shared.loaded
        pipe.set_progress_bar_config(disable=True)
        if request.compare:
            shared.warm(run, lambda: _film(run, pipe, replace(request, settings=briefly(request.settings, pipe))))
        with accelerate(pipe, *request.choice.methods, preset=request.choice.preset) as session:
            plain = None
            if request.compare:
                with run.stage(PLAIN), session.baseline() as target:
                    plain = _film(run, target, request)
                session.report.baseline_seconds = plain.seconds
            with run.stage(ACCELERATED):
                filmed = _film(run, session, request)
            with run.stage("draw"):
                computed = _trace(session)
        with run.stage("measure"):
            quality, cost = _quality(plain, filmed)
        with run.stage("draw"):
            shown = _side_by_side(plain, filmed)
        return Shot(filmed.frames, shown, session.report, quality, cost, computed, rate_of(pipe), filmed.field)


def _film(run: Run, target: Any, request: VideoRequest) -> Filmed:
    """A clip whose progress is told after every step, and that ends when its visitor left."""
    pipe = target.target if isinstance(target, Session) else target

    def step(pipe: Any, number: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        run.tell(number + 1, getattr(pipe, "num_timesteps", 0))
        return values

    return film(target, request.prompt, request.settings, **on_step_end(pipe, step))


def _trace(session: Session) -> Image.Image | None:
    try:
        trace = trace_of(session)
    except SettingError:  # not all methods choose tokens
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.png"
        trace.save(path)
        return Image.open(path).convert("RGB")


def _quality(plain: Filmed | None, filmed: Filmed) -> tuple[str, str]:
    """The difference to the plain run: for the report, and in plain words."""
    if plain is None:
        return "", ""
    told = f"  quality     {quality.distance(plain.frames, filmed.frames)} to the plain {plain.kind}, measured"
    return told, _cost(quality.psnr(plain.frames, filmed.frames), plain.kind)


def _cost(psnr: float, kind: str) -> str:
    """What a distance to the plain clip or picture looks like.

    Examples
    --------
    >>> _cost(55.04, "clip")
    'By eye the same clip as the plain one: 55.0 dB PSNR.'
    """
    if psnr >= 100:
        return f"The very same {kind}, pixel for pixel: nothing is lost."
    looks = next(said for least, said in LOOKS if psnr >= least)
    return f"{looks.format(kind=kind)} the plain one: {psnr:.1f} dB PSNR."


def _side_by_side(plain: Filmed | None, filmed: Filmed) -> list[Image.Image]:
    """The runs as one clip, each with its time above."""
    runs = [(ACCELERATED, filmed)] if plain is None else [(PLAIN, plain), (ACCELERATED, filmed)]
    labels = [f"{name}  {run.seconds:.2f} s" for name, run in runs]
    return clips.side_by_side([run.frames for _, run in runs], labels)
