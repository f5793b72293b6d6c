"""What all tabs stand on: shared models, limits, and buttons whose work can be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from .limits import Limits
from .models import Models
from .runs import Runs, Stopped, log, readable

# All heavy work waits in one queue: two runs at once would spoil each other's times.
QUEUE = "models"

Work = Callable[..., Any]


@dataclass(frozen=True)
class Frame:
    """The parts of the app that tabs share.

    Examples
    --------
    A tab is a function that is called inside its `gr.Tab`::

        def build(frame: Frame) -> None:
            prompt, button, answer = gr.Textbox(), gr.Button("Accelerated"), gr.Markdown()
            frame.connect([button.click], work, [prompt], [answer], progress_on=answer)

        def work(run: Run, prompt: str) -> str: ...
    """

    models: Models = field(default_factory=Models)
    limits: Limits = field(default_factory=Limits)
    runs: Runs = field(default_factory=Runs)
    goodbyes: list[Callable[[str], Any]] = field(default_factory=list)  # what tabs do when a visitor leaves

    def connect(
        self, triggers: Sequence[Any], work: Work, inputs: Sequence[Any], outputs: Sequence[Any], progress_on: Any
    ) -> None:
        """Let events call ``work(run, *values of inputs)`` in the queue, and put what it returns into `outputs`.

        Work that yields shows what it has so far. It calls `run.check()` or `run.tell()` often, so that it ends when
        its visitor does not want it any more; whatever it raises becomes a message.
        """

        def handle(request: gr.Request, progress: Any = gr.Progress(), *values: Any) -> Any:  # noqa: B008
            def tell(share: float | None, name: str) -> None:
                progress(share, desc=name)

            try:
                with readable(), self.runs.begin(visitor(request), tell) as run:
                    made = work(run, *values)
                    if isinstance(made, Iterator):
                        yield from made
                    else:
                        yield made
            except Stopped:
                log.info("a run was stopped by its visitor")
                gr.Info("The run was stopped.", title="Stopped")
                yield gr.skip() if len(outputs) == 1 else [gr.skip() for _ in outputs]

        gr.on(
            list(triggers),
            handle,
            inputs=list(inputs),
            outputs=list(outputs),
            show_progress_on=progress_on,
            concurrency_id=QUEUE,
            concurrency_limit=1,
            trigger_mode="once",
            api_visibility="private",
        )

    def connect_stop(self, button: gr.Button) -> None:
        """Let a button stop what its visitor runs, at once and past the queue."""
        button.click(self.stop, queue=False, show_progress="hidden", api_visibility="private")

    def stop(self, request: gr.Request) -> None:
        """End all runs of the visitor who asks."""
        self.runs.stop(visitor(request))

    def leave(self, request: gr.Request) -> None:
        """A visitor has closed their tab: end their runs, and let go of what is held for them."""
        self.stop(request)
        for goodbye in self.goodbyes:
            goodbye(visitor(request))


def visitor(request: gr.Request) -> str:
    """What tells the visitors apart: one page in one browser tab."""
    return str(request.session_hash or "")
