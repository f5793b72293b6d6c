"""What the model's own loop sets up for its steps, also around the steps of a loop with drafts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from mmaccel import private


class StepMode:
    """Keeps that set up while passes read one token of each text; wider ones run as prompts do.

    Parameters
    ----------
    model
        That writes.
    stack
        That puts it back as it was when it is closed.
    """

    def __init__(self, model: Any, stack: ExitStack) -> None:
        self._model, self._within, self._on = model, ExitStack(), False
        stack.push(self._within)

    def follow(self, on: bool) -> None:
        """The next pass is such a step, or not."""
        if on and not self._on:
            self._within.enter_context(private.for_steps(self._model))
        elif not on:
            self._within.close()
        self._on = on
