"""What all tabs stand on: shared models, limits, and buttons whose work can be stopped."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from mmaccel.errors import SettingError

from .limits import Limits
from .looks.board import ACCELERATED, Progress, notice
from .models import Models
from .runs import Runs, Stopped, log, readable

QUEUE = "models"  # of heavy work; Gradio's own would neither tell nor end what waits in it
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
    # One thread does all heavy work while others answer browsers: two runs at once would spoil each other's times, and
    # threads that come and go would each cost torch its own.
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "mmaccel demo"))
    ends: list[Callable[[str], Any]] = field(default_factory=list)  # what tabs do when a visitor stops or leaves

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
                concurrency_limit=None,
                trigger_mode="once",
                api_visibility="private",
            )

    def _made(self, who: str, progress: Progress, work: Work, values: Sequence[Any]) -> Iterator[Any]:
        """What work returns or yields, and None whenever it has been waiting or busy for a while."""
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._make_room()
        live = ExitStack()
        run = live.enter_context(self.runs.begin(who, progress.tell))
        progress.tell(0.0, "wait")

        def pump() -> None:
            try:
                with live, readable():
                    run.check()
                    made = work(run, *values)
                    for one in made if isinstance(made, Iterator) else [made]:
                        results.put(one)
            except Stopped:
                log.info("a run was stopped by its visitor")
                raise

        done = self.worker.submit(pump)
        try:
            while not (done.done() and results.empty()):
                if run.stopped and done.cancel():  # while it waited
                    raise Stopped
                try:
                    yield results.get(timeout=EVERY)
                except queue.Empty:
                    yield None
            done.result()
        finally:
            run.stop()  # the page may be gone
            if done.cancel():
                live.close()

    def _make_room(self) -> None:
        if self.runs.count() > self.limits.waiting:
            with readable():
                raise SettingError(f"no more than {self.limits.waiting} runs may wait: try again in a minute")

    def connect_stop(self, button: gr.Button) -> None:
        """Let a button stop what its visitor runs, awaits or says, at once and past the queue."""
        button.click(self.stop, queue=False, show_progress="hidden", api_visibility="private")

    def stop(self, request: gr.Request) -> None:
        """End all that the visitor who asks runs, awaits or says; or who has closed their page."""
        who = visitor(request)
        self.runs.stop(who)
        for end in self.ends:
            end(who)


def visitor(request: gr.Request) -> str:
    """What tells the visitors apart: one page in one browser tab."""
    return str(request.session_hash or "")
