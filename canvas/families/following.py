"""What follows a pipeline for the methods of one session: through its model's passes and its scheduler's steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import wrap_forward, wrap_method
from mmaccel.session import Session

from ..method import CanvasMethod, CommitRule


class Follower(ABC):
    """What the methods of one session do in each pass of the model and in each step of the scheduler.

    Attributes
    ----------
    scheduler
        That the pipeline had when the session began.
    rule
        Of the methods, where there is one.
    """

    def __init__(self, session: Session, model: Any, methods: Sequence[CanvasMethod]) -> None:
        self.session, self.model, self.scheduler = session, model, session.target.scheduler
        self.rule = next((m for m in methods if isinstance(m, CommitRule)), None)

    def attach(self, stack: ExitStack) -> None:
        """Install itself, until `stack` closes."""
        self.session.hold(self.scheduler)
        self.session.around.append(self._run)
        stack.callback(self.session.around.remove, self._run)
        wrap_forward(stack, self.model, self._forward)
        wrap_method(stack, self.scheduler, "step", self._step)
        wrap_method(stack, self.scheduler, "set_timesteps", self._start)

    def refuse_another_scheduler(self) -> None:
        """Raise an `UnsupportedTargetError` if the pipeline has another scheduler by now."""
        if self.session.target.scheduler is not self.scheduler:
            raise UnsupportedTargetError(
                f"the pipeline has another scheduler than when {self.session} began, and methods follow that one: call"
                " .remove(), and accelerate it again"
            )

    @contextmanager
    def _run(self) -> Iterator[None]:
        """Around each run of the session."""
        try:
            yield
            self._fill()
        finally:
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
        """In place of the scheduler's step."""

    @abstractmethod
    def _start(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """With the scheduler's steps, a run of the pipeline begins."""
