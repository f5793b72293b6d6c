"""Items of `batch` over the processes of a Ray cluster, each with a model of its own."""

from __future__ import annotations

import argparse
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..batch.folder import FOLDER
from ..batch.run import Workers
from ..batch.work import Made, Task, working
from ..errors import MmaccelError, SettingError
from .connection import connected, count_of, ended_early, lost, module, needs_of, work_in

if TYPE_CHECKING:
    from ..cli.command import Command

ATTEMPTS = 3  # of an item whose process ends; it may be the item that ends it


class BatchWorker:
    """A process with a model; it outlives every error of its items.

    Parameters
    ----------
    command, usual
        As for :func:`mmaccel.batch.work.working`.
    output, mark
        The folder of outputs, which this machine must see, and a file in it that shows that it is the same one.
    place
        The folder in which the command was said.
    """

    def __init__(self, command: Command, usual: argparse.Namespace, output: Path, mark: str, place: str) -> None:
        self.stack, self.problem = ExitStack(), ""
        work_in(place)
        try:
            if not (output / FOLDER / mark).is_file():
                raise SettingError(_unseen(output, "a folder"))
            self.work = self.stack.enter_context(working(command, usual))
        except (MmaccelError, OSError) as error:
            self.problem = str(error)

    def ready(self) -> str:
        """Why it cannot work; empty where it can."""
        return self.problem

    def make(self, task: Task) -> Made:
        """Make an item; one that replaces another, and cannot work, says why."""
        if self.problem:
            return Made(task, error=self.problem)
        files = [Path(task.item.fields[name]) for name in task.item.files]
        missing = next((file for file in files if not file.exists()), None)
        return self.work.make(task) if missing is None else Made(task, error=_unseen(missing, "files"))


def _unseen(path: Path, what: str) -> str:
    return f"{socket.gethostname()} does not see {path}: give {what} that all machines share"


def spread(command: Command, usual: argparse.Namespace, output: Path, address: str, count: int | None) -> Workers:
    """Processes of a cluster, as many as asked for or as there are cores or GPUs."""
    needs = needs_of(usual.device)
    module()  # without Ray, no folder of outputs is begun

    def work(tasks: list[Task]) -> Iterator[Made]:
        with connected(address) as ray:
            number = min(count_of(ray, count, needs, "--workers"), len(tasks))
            with tempfile.NamedTemporaryFile(dir=output / FOLDER, prefix="seen-") as mark:
                given = command, usual, output.absolute(), Path(mark.name).name, str(Path.cwd())
                yield from Crew(ray, needs, number, given).make(tasks)

    return work


class Crew:
    """The processes of one run. One that ends is replaced, and its item is made by another.

    Parameters
    ----------
    ray
        The module, connected.
    needs, count
        What each process asks of Ray, and how many there are.
    given
        What :class:`BatchWorker` takes.
    """

    def __init__(self, ray: Any, needs: dict[str, float], count: int, given: tuple[Any, ...]) -> None:
        self.ray, self.given = ray, given
        self.remote = ray.remote(**needs, max_restarts=0)(BatchWorker)
        self.started: list[Any] = []
        self.idle = [self._start() for _ in range(count)]

    def _start(self) -> Any:
        self.started.append(self.remote.remote(*self.given))
        return self.started[-1]

    def make(self, tasks: list[Task]) -> Iterator[Made]:
        """What becomes of the tasks, as they are finished; the processes end with it."""
        try:
            self._wait_until_ready()
            yield from self._make(tasks)
        finally:
            for worker in self.started:
                self.ray.kill(worker)

    def _make(self, tasks: list[Task]) -> Iterator[Made]:
        waiting, ended = list(reversed(tasks)), Counter[str]()
        running: dict[Any, tuple[Any, Task]] = {}
        while waiting or running:
            while self.idle and waiting:
                worker, task = self.idle.pop(), waiting.pop()
                running[worker.make.remote(task)] = worker, task
            (done,), _ = self.ray.wait(list(running))
            worker, task = running.pop(done)
            try:
                yield self.ray.get(done)
                self.idle.append(worker)
            except lost(self.ray):
                self.idle.append(self._start())
                ended[task.item.key] += 1
                if ended[task.item.key] < ATTEMPTS:
                    waiting.append(task)
                else:
                    yield Made(task, error=f"its process ended {ATTEMPTS} times: it may need more memory than there is")

    def _wait_until_ready(self) -> None:
        try:
            problems = self.ray.get([worker.ready.remote() for worker in self.started])
        except self.ray.exceptions.RayError as error:
            raise SettingError(ended_early(error)) from error
        if any(problems):
            raise SettingError(next(filter(None, problems)))
