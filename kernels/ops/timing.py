"""Timing several ways of one computation against each other, on a machine that may have other work."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

QUIET_ROUNDS = 3  # that a verdict needs
BUSY_ROUNDS = 4  # after which it is given up, so that a busy machine costs little more than a quiet one
LEAST_SHARE = 0.8  # of the threads' time that a round must have had; on a quiet machine it is 0.95 to 1
MOST_SPREAD = 1.3  # of a run's middle round over its fastest one
GPU_CALLS = 10  # in a row, whose launches the queue then hides, as in a model


@dataclass(frozen=True)
class Timing:
    """What each way took.

    Attributes
    ----------
    seconds
        The least of several rounds for each, since other work on the machine only adds to them.
    quiet
        Whether the machine had no other work, so that the figures say which way is faster.
    """

    seconds: tuple[float, ...]
    quiet: bool


def fastest(runs: list[Callable[[], object]], device: torch.device) -> Timing:
    """Run all ways in turn, one round after another, until enough rounds were quiet or too many were not.

    On a CPU, a round is quiet if the process had nearly all of the time of its threads: what others take is missing in
    its processor time. Rounds that were not quiet do not count if others were.
    """
    for run in runs:
        run()  # warms up
    quiet: list[list[float]] = []
    busy: list[list[float]] = []
    while len(quiet) < QUIET_ROUNDS and len(busy) < BUSY_ROUNDS:
        seconds, share = _round(runs, device)
        (quiet if share >= LEAST_SHARE else busy).append(seconds)
    taken = list(zip(*(quiet or busy), strict=True))
    steady = all(statistics.median(times) <= MOST_SPREAD * min(times) for times in taken)
    return Timing(tuple(map(min, taken)), steady and len(quiet) == QUIET_ROUNDS)


def _round(runs: list[Callable[[], object]], device: torch.device) -> tuple[list[float], float]:
    """Seconds of each run, and which share of its threads' time the process had; 1 on other devices than a CPU."""
    seconds, worked = [], 0.0
    calls = 1 if device.type == "cpu" else GPU_CALLS
    for run in runs:
        _wait(device)
        began, processor = time.perf_counter(), time.process_time()
        for _ in range(calls):
            run()
        _wait(device)
        seconds.append((time.perf_counter() - began) / calls)
        worked += time.process_time() - processor
    if device.type != "cpu":
        return seconds, 1.0
    return seconds, worked / max(torch.get_num_threads() * math.fsum(seconds), 1e-9)


def _wait(device: torch.device) -> None:
    if device.type in ("cuda", "xpu"):
        torch.get_device_module(device).synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
