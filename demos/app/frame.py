"""What all tabs stand on: shared models, limits, and buttons whose work can be stopped."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from .limits import Limits
from .looks.board import ACCELERATED, Progress, notice
from .models import Models
from .runs import Runs, Stopped, log, readable

# All heavy work waits in one queue: two runs at once would spoil each other's times.
QUEUE = "models"
EVERY = 0.15  # seconds between two looks at the progress

Work = Callable[..., Any]


@dataclass(frozen=True)
class Frame:
    """The parts of the app that tabs share.

    Examples
    --------
    A tab is a function that is called inside its `gr.Tab`::

        def build(frame: Frame) -> None:
            prompt, button, board, answer = gr.Textbox(), gr.Button("Accelerated"), gr.HTML(), gr.Markdown()
            frame.connect([button.click], work, [prompt], [board, answer])

        def work(run: Run, prompt: str) -> list[str]: ...
    """

    models: Models = field(default_factory=Models)
    limits: Limits = field(default_factory=Limits)
    runs: Runs = field(default_factory=Runs)
    # One thread does the work while others answer browsers: threads that come and go would each cost torch its own.
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "mmaccel demo"))
    goodbyes: list[Callable[[str], Any]] = field(default_factory=list)  # what tabs do when a visitor leaves

    def connect(
        self,
        triggers: Sequence[Any],
        work: Work,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        lanes: Sequence[str] = (ACCELERATED,),
    ) -> None:
        """Let events call ``work(run, *values of inputs)`` in the queue, and put what it returns into `outputs`.

        Work that yields shows what it has so far. It calls `run.check()` or `run.tell()` often, so that it ends when
        its visitor does not want it any more; whatever it raises becomes a message. Meanwhile the first output, the
        board, shows how far the stages `lanes` are.
        """

        def handle(request: gr.Request, *values: Any) -> Any:
            progress, rest = Progress(lanes), [gr.skip() for _ in outputs[1:]]
            try:
                for made in self._made(visitor(request), progress, work, values):
                    yield [progress.page(), *rest] if made is None else made
                return
            except Stopped:
                told = notice("Stopped", "The run was stopped.")
            except gr.Error as error:  # of which gradio's own notices leave the title out
                told = notice(error.title, error.message)
            yield [told, *rest]

        for trigger in triggers:
            trigger(
                handle,
                inputs=list(inputs),
                outputs=list(outputs),
                show_progress="minimal",
                show_progress_on=outputs[0],
                concurrency_id=QUEUE,
                concurrency_limit=1,
                trigger_mode="once",
                api_visibility="private",
            )

    def _made(self, who: str, progress: Progress, work: Work, values: Sequence[Any]) -> Iterator[Any]:
        """What work returns or yields, and None whenever it has been busy for a while."""
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def pump() -> None:
            try:
                with readable(), self.runs.begin(who, progress.tell) as run:
                    made = work(run, *values)
                    for one in made if isinstance(made, Iterator) else [made]:
                        results.put(one)
            except Stopped:
                log.info("a run was stopped by its visitor")
                raise

        done = self.worker.submit(pump)
        try:
            while not (done.done() and results.empty()):
                try:
                    yield results.get(timeout=EVERY)
                except queue.Empty:
                    yield None
            done.result()
        finally:
            if not done.done() and not done.cancel():  # the page is gone
                self.runs.stop(who)

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
