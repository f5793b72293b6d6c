"""Replicas of one model behind one server, by Ray Serve: `mmaccel serve --ray`.

The server is that of `mmaccel serve`, with its limits and keys; only the model is elsewhere. Ray Serve starts the
replicas, sends each request to one that is free, replaces those that end, and adds and drains some as load changes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MmaccelError, SettingError
from ..modality import get_modality
from ..serve.app import ServerLimits
from ..serve.endpoint import PATIENCE, Endpoint, status_of
from ..serve.metrics import Metrics
from ..serve.worker import Worker
from .connection import connected, count_of, ended_early, lost, needs_of, serve_module, work_in
from .forwarding import RemoteEndpoint
from .streams import FarConnection, Inboxes, Said

if TYPE_CHECKING:
    from ..cli.command import Command

FIGURES = ("mmaccel_model_seconds", "mmaccel_passes", "mmaccel_plain_passes")
# "checked" or "begun" and None, "progress" and per cent, "piece" and an event, "figures", "end" and the last events,
# "answer" and it, or "error", status and reason
AnswerPart = tuple[str, Any]


class Replica:
    """A model in a process of its own, with the queue and the batches of `mmaccel serve`.

    Parameters
    ----------
    command, arguments
        Of the command line; what they serve is loaded here.
    waiting, batch
        As for :class:`Worker`.
    place
        The folder in which the command was said.
    """

    def __init__(
        self, command: Command, arguments: argparse.Namespace, waiting: int, batch: int, place: str = ""
    ) -> None:
        work_in(place)
        self.stack, self.metrics = ExitStack(), Metrics()
        self.told, self.refusal = dict.fromkeys(FIGURES, 0.0), ""
        try:
            self.endpoint = self.stack.enter_context(command.served(arguments))
            self.worker = Worker(self.endpoint, self.metrics, waiting, batch)
        except (MmaccelError, OSError) as error:  # Ray would start it again and again
            self.refusal = f"{socket.gethostname()}: {error}"

    def problem(self) -> str:
        """Why it cannot answer; empty where it can."""
        return self.refusal

    async def ask(self, body: dict[str, Any], seconds: float) -> AsyncIterator[AnswerPart]:
        """What is answered within some seconds: pieces while it is made, if they are asked for, and the end of it."""
        until = time.monotonic() + seconds
        if self.refusal:  # it came later than those that were asked for their problems
            yield "error", (503, self.refusal)
            return
        try:
            request = await asyncio.to_thread(self.endpoint.parse, body)
        except MmaccelError as error:
            yield "error", (status_of(error), str(error))
            return
        try:
            future = self.worker.submit(request, until)
            yield "checked", None
            begun, progress = False, 0
            while not future.done() or (request.pieces is not None and not request.pieces.empty()):
                if not begun and future.running():
                    begun = True
                    yield "begun", None
                elif request.progress != progress:
                    progress = request.progress
                    yield "progress", progress
                elif request.pieces is not None and not request.pieces.empty():
                    yield "piece", self.endpoint.piece(request, request.pieces.get())
                else:
                    await asyncio.sleep(PATIENCE / 10)
            answer = await asyncio.wrap_future(future)
            yield "figures", self._figures()
            yield ("answer", answer) if request.pieces is None else ("end", self.endpoint.ending(request))
        except MmaccelError as error:
            yield "error", (status_of(error), str(error))
        finally:
            request.left.set()

    async def listen(self, path: str, query: dict[str, str], stream: str, inboxes: Any) -> AsyncIterator[Said]:
        """What is said in a live stream, whose messages come through the inboxes."""
        if self.refusal:
            yield "error", (503, self.refusal)
            return
        async for said in FarConnection(query, stream, inboxes).talked(self.endpoint.sockets()[path]):
            yield said

    def _figures(self) -> dict[str, float]:
        """What the model did since they were told last."""
        now = {name: self.metrics.registry.get_sample_value(f"{name}_total") or 0.0 for name in FIGURES}
        found = {name: now[name] - self.told[name] for name in FIGURES}
        self.told = now
        return found


@contextmanager
def replicated(
    command: Command, arguments: argparse.Namespace, limits: ServerLimits, address: str, least: int, most: int
) -> Iterator[RemoteEndpoint]:
    """Replicas inside the block, and what a server answers with.

    Parameters
    ----------
    address
        As for :func:`connected`.
    least, most
        Ray Serve adds and drains replicas between the two numbers.

    Raises
    ------
    MissingExtraError
        If Ray Serve is not installed.
    SettingError
        If there is no cluster, it is too small, or a GPU was chosen by its number.
    """
    needs = needs_of(arguments.device)
    serve = serve_module()
    with connected(address) as ray:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it tells every step
        count_of(ray, most, needs, "--replicas")
        running = 2 * limits.batch  # of a replica: one batch runs, and the next one gathers
        answering: type[Endpoint[Any]] = import_module(get_modality(arguments.kind).serving).ENDPOINT
        streams = limits.sockets if answering.sockets is not Endpoint.sockets else 0  # all may be at one replica
        deployment: Any = serve.deployment(
            **_scaled(least, most, limits.batch),
            max_ongoing_requests=running + streams,
            graceful_shutdown_timeout_s=limits.deadline,
            ray_actor_options=needs,
        )(Replica)
        name = f"mmaccel-{socket.gethostname()}-{os.getpid()}"
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        app = deployment.bind(command, arguments, running + streams, limits.batch, os.getcwd())
        try:
            try:
                handle = serve.run(app, name=name, route_prefix=None)
            except RuntimeError as error:
                raise SettingError(ended_early(error)) from error
            if problem := next(filter(None, handle.broadcast("problem").results()), ""):
                raise SettingError(problem)
            inboxes = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=4 * (1 + streams))(Inboxes).remote
            given = handle.options(stream=True), lost(ray), running * most, inboxes
            yield RemoteEndpoint(arguments.model, answering, *given)
        finally:
            serve.delete(name)


def _scaled(least: int, most: int, batch: int) -> dict[str, Any]:
    if least == most:
        return {"num_replicas": most}
    between = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": batch}
    return {"autoscaling_config": between}
