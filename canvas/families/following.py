"""What follows a pipeline for the methods of one session: through its model's passes and its scheduler's steps."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any, ClassVar

from mmaccel import private
from mmaccel.decoding.setting import tell_rounding
from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import wrap_forward, wrap_method
from mmaccel.session import Session

from ..method import CanvasMethod, CommitRule


class Follower(ABC):
    """What the methods of one session do in each pass of the model and in each step of the scheduler.

    Passes and steps outside a run are those of the model and of the scheduler themselves: what is kept of a run says
    nothing of other tokens.

    Attributes
    ----------
    model, scheduler
        That the pipeline had when the session began.
    part
        The name that the pipeline has for the model.
    rule
        Of the methods, where there is one.
    begun
        Whether the scheduler was given its steps for a run that is to be followed, and the session's has not ended.
    called
        Whether a run of the session goes on, and not a call of the pipeline itself.
    exact, acts
        Whether the methods are, as far as the session knew when it began, and whether there are any.
    own
        The code of the call of a pipeline, where that gave the steps: the run ends with it.
    """

    part: ClassVar[str] = "model"

    def __init__(self, session: Session, methods: Sequence[CanvasMethod]) -> None:
        pipe = session.target
        self.session, self.model, self.scheduler = session, getattr(pipe, self.part), pipe.scheduler
        self.rule = next((m for m in methods if isinstance(m, CommitRule)), None)
        self.begun = self.called = False
        self.exact, self.acts = session.report.exact, bool(methods)
        self.own: CodeType | None = None

    def attach(self, stack: ExitStack) -> None:
        """Install itself, until `stack` closes."""
        self.session.hold(self.model)
        self.session.hold(self.scheduler)
        self.session.around.append(self._run)
        stack.callback(self.session.around.remove, self._run)
        wrap_forward(stack, self.model, functools.partial(self._in_run, self._forward))
        wrap_method(stack, self.scheduler, "step", functools.partial(self._in_run, self._answered_step))
        wrap_method(stack, self.scheduler, "set_timesteps", self._start_run)

    def refuse_other_parts(self) -> None:
        """Raise an `UnsupportedTargetError` if the pipeline has another model or scheduler by now."""
        replaced = self._replaced(self.session.target)
        if replaced is not None:
            raise UnsupportedTargetError(
                f"the pipeline has another {replaced} than when {self.session} began, and methods follow that one: call"
                " .remove(), and accelerate it again"
            )

    def _replaced(self, pipe: Any) -> str | None:
        """The name of a part that the session's pipeline had when it began, and this one has not."""
        followed = {self.part: self.model, "scheduler": self.scheduler}
        return next((name for name, part in followed.items() if getattr(pipe, name, None) is not part), None)

    def _start_run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """With the scheduler's steps a run begins; it is not followed where its passes cannot be."""
        call = pipeline_call(self.scheduler)
        self.begun = self._replaced(call.f_locals["self"] if call else self.session.target) is None
        self.own = call.f_code if call else None  # else someone goes through the steps by hand
        return _by_name(self._start, original, original, args, kwargs) if self.begun else original(*args, **kwargs)

    def _in_run(self, follow: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """By `follow` while a run is going on. Calls of the pipeline itself, and their errors, do not say they end."""
        if not self.begun or not (self.own is None or _is_running(self.own)):
            return original(*args, **kwargs)
        tells_nothing = follow == self._forward and private.is_compiled(self.model)  # of what its arguments are
        return _by_name(follow, original, self.model.forward if tells_nothing else original, args, kwargs)

    def _answered_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The step, answered as it is asked: by name, or as a tuple."""
        in_full = kwargs.pop("return_dict", True)
        out = self._step(original, *args, **kwargs)
        return out if in_full else out.to_tuple()

    @contextmanager
    def _run(self) -> Iterator[None]:
        """Around each run of the session."""
        self.called = True
        try:
            yield
            self._fill()
            if self.exact and self.acts:
                tell_rounding(self.session.report, self.model)
        finally:
            self.begun = self.called = False
            self._forget()

    @abstractmethod
    def _fill(self) -> None:
        """Write the report of a run."""

    @abstractmethod
    def _forget(self) -> None:
        """Keep nothing of a run and of its arguments."""

    @abstractmethod
    def _forward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In place of the model's pass."""

    @abstractmethod
    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In place of the scheduler's step; answers by name."""

    @abstractmethod
    def _start(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """With the scheduler's steps, a run of the pipeline begins."""


def _by_name(
    follow: Callable[..., Any],
    original: Callable[..., Any],
    told: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `follow` in place of `original`, with all arguments but the first by the names that are `told` of them."""
    others = list(inspect.signature(told).parameters.values())[1:]
    names = [each.name for each in others if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = dict(zip(names, args[1:], strict=False))
    return follow(original, *args[:1], *args[1 + len(named) :], **named, **kwargs)


def pipeline_call(scheduler: Any) -> FrameType | None:
    """The call of a pipeline with this scheduler, the innermost one among the callers; it may be another pipeline."""
    frame = inspect.currentframe()
    while frame is not None and not _calls_pipeline(frame, scheduler):
        frame = frame.f_back
    return frame


def _calls_pipeline(frame: FrameType, scheduler: Any) -> bool:
    """Whether it is the call of a pipeline with this scheduler, and not of a class of a user that has it too."""
    from diffusers import DiffusionPipeline

    if frame.f_code.co_name != "__call__":
        return False
    owner = frame.f_locals.get("self")
    return isinstance(owner, DiffusionPipeline) and getattr(owner, "scheduler", None) is scheduler


def _is_running(code: CodeType) -> bool:
    """Whether a function of this code is among the callers."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
