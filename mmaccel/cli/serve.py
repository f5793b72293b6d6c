"""The command `mmaccel serve`: its arguments, and its work."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ..cluster.connection import HERE
from ..errors import MissingExtraError, SettingError
from ..modality import get_modality, modalities
from .arguments import COUNT, kinds_of, positive, whole
from .model_arguments import add_model

if TYPE_CHECKING:
    from ..serve.app import ServerLimits
    from ..serve.endpoint import Endpoint

KEY = "MMACCEL_API_KEY"
NEEDED = ("starlette", "uvicorn", "prometheus_client", "websockets", "python_multipart")
ABOUT = f"""Serve a model, accelerated, over HTTP as OpenAI's clients ask for it.

With --ray the model is in replicas, of which Ray Serve replaces those that end:
  mmaccel serve KIND --ray --replicas 2
  mmaccel serve KIND --ray 10.0.0.5:6379 --replicas 1-8 --device cuda

Clients must send the API key that the environment variable {KEY} holds,
if it is set.
"""


def add_parser(commands: Any) -> None:
    """Add `serve`, with a kind for each modality that can be served, to the command line."""
    kinds = kinds_of(commands, "serve", "serve a model over HTTP, accelerated", description=ABOUT)
    for modality in modalities():
        if modality.serving:
            command = modality.command()
            about = ABOUT.replace("KIND", modality.name)
            kind = kinds.add_parser(modality.name, help=command.help, description=about)
            _add_arguments(kind)
            command.add_acceleration(kind)
            add_model(kind, modality.model)
            kind.set_defaults(run=run_serve)


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--port", type=whole(0, 65_535), default=8000, help="default 8000; 0 for a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine alone)")
    names = "a host name of the server, such as ai.example.org; requests to other names are refused"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=names)
    waiting = "requests that may wait; the next one is answered 503 (default 16)"
    parser.add_argument("--waiting", type=whole(1, 1000), default=16, help=waiting)
    rows = "most rows of a batch of several requests for pictures or answers; 1 lets live streams of speech take turns"
    parser.add_argument("--batch", type=whole(1, COUNT), default=4, help=f"{rows} (default 4)")
    streams = "live streams of speech that may be open; the next one is answered 503 (default 8)"
    parser.add_argument("--streams", type=whole(1, 1000), default=8, help=streams)
    spread = "put the model into replicas, by Ray: on this machine, or on a cluster at an address such as 10.0.0.5:6379"
    parser.add_argument("--ray", nargs="?", const=HERE, metavar="ADDRESS", help=spread)
    replicas = "replicas with --ray, each with a model of its own; 1-4 adds and drains some as load changes (default 1)"
    parser.add_argument("--replicas", type=count, metavar="N", help=replicas)
    deadline = "seconds until a 504, but for clips of `serve video`, which are fetched later (default 300)"
    parser.add_argument("--deadline", type=positive, default=300.0, help=deadline)


def run_serve(arguments: argparse.Namespace) -> None:
    """Serve until stopped."""
    if any(importlib.util.find_spec(package) is None for package in NEEDED):
        raise MissingExtraError('serving needs a few packages: pip install "mmaccel[serve]"')
    key = os.environ.get(KEY, "")
    if not key and not _is_loopback(arguments.host):
        advice = f"set {KEY}, such as {KEY}=$(openssl rand -hex 16)"
        raise SettingError(f"--host {arguments.host} is open to others: {advice}")
    from ..serve import run
    from ..serve.app import ServerLimits

    limits = ServerLimits(
        waiting=arguments.waiting, batch=arguments.batch, deadline=arguments.deadline, sockets=arguments.streams
    )
    # To be told now of a port that is taken; kept, it would take requests long before there is a model.
    run.listening(arguments.host, arguments.port).close()
    with _served(arguments, limits) as endpoint:
        run.serve(endpoint, limits, arguments.host, arguments.port, arguments.allow_host, key, _tell)


def count(text: str) -> tuple[int, int]:
    """Reads a number of replicas, or the least and the most of them.

    Examples
    --------
    >>> count("2"), count("1-4")
    ((2, 2), (1, 4))
    """
    least, _, most = text.partition("-")
    found = whole(1, 1000)(least), whole(1, 1000)(most or least)
    if found[0] > found[1]:
        raise argparse.ArgumentTypeError(f"{text}: it must be a number, or two of them such as 1-4")
    return found


def _served(arguments: argparse.Namespace, limits: ServerLimits) -> AbstractContextManager[Endpoint[Any]]:
    """What is answered, by a model in this process or by replicas."""
    command = get_modality(arguments.kind).command()
    if arguments.ray is None:
        if arguments.replicas is not None:
            raise SettingError("--replicas is for --ray: say both, or neither")
        return command.served(arguments)
    from ..cluster.replicas import replicated

    given = argparse.Namespace(**{name: value for name, value in vars(arguments).items() if name != "run"})
    return replicated(command, given, limits, arguments.ray, *(arguments.replicas or (1, 1)))


def _tell(address: str) -> None:
    print(f"{address} (Ctrl+C stops it)", flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
