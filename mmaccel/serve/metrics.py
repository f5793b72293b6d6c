"""What Prometheus may ask: requests, times, the queue, and what the methods saved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..session import Session

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)  # long pictures and clips take minutes


class Metrics:
    """The figures of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("mmaccel_requests", "Requests by status of their answer", ["status"], **kept)
        self.seconds = Histogram(
            "mmaccel_request_seconds", "From a whole request to its answer", buckets=SECONDS, **kept
        )
        self.waiting = Gauge("mmaccel_waiting", "Requests in the queue", **kept)
        self.running = Gauge("mmaccel_running", "Rows of the batch that runs", **kept)
        self.sockets = Gauge("mmaccel_sockets", "Websockets that are open", **kept)
        self.batches = Histogram("mmaccel_batch_rows", "Rows of a batch", buckets=BATCHES, **kept)
        self.model_seconds = Counter("mmaccel_model_seconds", "Time that the model ran", **kept)
        self.passes = Counter("mmaccel_passes", "Forward passes of the model", **kept)
        self.plain_passes = Counter("mmaccel_plain_passes", "Forward passes that a plain model takes for this", **kept)

    @contextmanager
    def batch(self, rows: int, target: Any) -> Iterator[None]:
        """Around a batch that the session, or the plain model, runs."""
        self.running.set(rows)
        self.batches.observe(rows)
        began = time.perf_counter()
        if isinstance(target, Session):
            target.report.start()  # where the model is not reached, nothing is counted
        try:
            yield
        finally:
            self.model_seconds.inc(time.perf_counter() - began)
            self.running.set(0)
            if isinstance(target, Session):
                self.passes.inc(target.report.forwards)
                self.plain_passes.inc(target.report.plain_forwards)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
