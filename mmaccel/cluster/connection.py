"""Ray: connecting to it, for a while."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import SettingError, required

HERE = "local"  # as Ray calls a cluster of this machine alone
FOUND = ("auto", HERE)  # addresses that are none
STARTED = Path("/tmp/ray/ray_current_cluster")  # where `ray start` notes the address, for "auto"
PATIENCE = 5.0  # seconds for a head to take a connection
OBJECTS = 200 * 2**20  # bytes for what passes between processes; outputs are files
START = "start one with `ray start --head`, or say --ray alone for this machine"
WRONG = "give its port (6379), use its versions of Ray and Python, and say RAY_AUTH_MODE=token first if it has a token"
# What Ray itself prints is no part of a command's output; it sends nothing about its use.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module `ray`, connected to a cluster inside the block.

    Parameters
    ----------
    address
        ``"local"`` starts a cluster of this machine alone, which ends with the block; others are Ray's.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    SettingError
        If there is no cluster at that address.
    """
    ray = module()
    _check(address)
    ends = signal.getsignal(signal.SIGTERM)
    started: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECTS} if address == HERE else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **started)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        advice = START if address in FOUND else f"{WRONG}, or {START}"
        raise SettingError(f"--ray {address}: there is no Ray to be reached ({reason}): {advice}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ends)  # Ray's own ends the process at once, with pages of addresses
    try:
        yield ray
    finally:
        ray.shutdown()


def module() -> Any:
    """The module `ray`; raises a `MissingExtraError` if it is not installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return required("ray", '--ray needs Ray: pip install "mmaccel[ray]"')


def serve_module() -> Any:
    """The module `ray.serve`; raises a `MissingExtraError` if Ray was installed without what it needs."""
    module()
    return required("ray.serve", '--ray needs Ray Serve: pip install "mmaccel[ray]"')


def _check(address: str) -> None:
    """Raise in a few seconds where nobody listens; Ray itself would try for a minute."""
    if address == "auto" and STARTED.is_file():  # one that has ended is still noted there
        address = STARTED.read_text().strip() or address
    if address in FOUND:
        return
    try:
        place = urlsplit(address if "//" in address else f"//{address}")
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise SettingError(f"--ray {address}: give an address and a port, such as 10.0.0.5:6379, or --ray alone")
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        raise SettingError(f"--ray {address}: nobody answers there ({error.strerror or error}): {START}") from error


def work_in(folder: str) -> None:
    """Go to the folder in which a command was said, if this machine has it: its paths may be relative."""
    if os.path.isdir(folder):
        os.chdir(folder)


CALLED = {"num_cpus": "CPU", "num_gpus": "GPU"}  # needs of a process, as a cluster counts them


def count_of(ray: Any, wanted: int | None, needs: dict[str, float], option: str) -> int:
    """How many processes of these needs there may be: as many as wanted, or as fit.

    Raises
    ------
    SettingError
        If they do not fit.
    """
    there = ray.cluster_resources()
    most = int(min(there.get(CALLED[name], 0) // share for name, share in needs.items()))
    if most < (wanted or 1):
        held = f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs"
        advice = f"ask for {most} or fewer" if most else "choose another --device, or a cluster with more"
        raise SettingError(f"Ray has {held}, too few for {option} {wanted or 1}: {advice}")
    return wanted or most


def ended_early(error: Exception) -> str:
    """Why processes of a cluster did not even begin, in a line."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"a process of Ray did not start ({said[-1][:200]}): its machines need the same mmaccel, Ray and Python"


def lost(ray: Any) -> tuple[type[Exception], ...]:
    """What calls raise whose process ended; where Ray ended it to free memory, that is an error of its own."""
    return ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError


def needs_of(device: str) -> dict[str, float]:
    """What a process with a model asks of Ray: a core, and a GPU where its device is one.

    Raises
    ------
    SettingError
        If the device is another GPU than the first: Ray shows each process just its own, as `cuda:0`.
    """
    if device.startswith("cuda:") and device != "cuda:0":
        raise SettingError(f"--device {device}: Ray chooses the GPU of each process: say --device cuda")
    return {"num_cpus": 1, **({"num_gpus": 1} if device.startswith("cuda") else {})}
