"""Load a server of two replicas, kill one of them now and then, and write down what its clients get.

    python -m mmaccel.demos.serving.replica_kills --minutes 5 --output docs/benchmarks/long/replica_kills

Clients ask for pictures with seeds, each as soon as it has the last one, and hold them against the plain model's. A
replica is killed whenever both have been there for twenty seconds; Ray Serve starts another one meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil

from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.demos.serving.serve_load import MODEL, Served, ask, load_options, picture, plain_pictures, serving

EVERY = 20  # seconds after which a replica may be killed
REPLICAS = 2
HEADINGS = ("what", "count")


def replicas(server: Served) -> list[psutil.Process]:
    """The processes of a server that have a model."""
    started = psutil.Process(server.process.pid).children(recursive=True)
    return [one for one in started if _line(one).startswith("ray::ServeReplica")]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Clients:
    """Clients that ask for pictures with seeds, each as soon as it has the last one.

    Attributes
    ----------
    counts
        What they got.
    finished
        When, by `time.monotonic`, and after how many seconds.
    """

    def __init__(self, server: Served) -> None:
        self.server, self.prompts = server, zoo.prompts(MODEL, 16, seed=5)
        self.wanted = plain_pictures(self.prompts)
        self.counts, self.finished, self.lock = Counter[str](), list[tuple[float, float]](), threading.Lock()

    def ask(self, number: int, go_on: Callable[[], bool]) -> None:
        """One client, while it is to go on."""
        place = number
        while go_on():
            place = (place + 1) % len(self.prompts)
            asked = time.monotonic()
            what = self._got(place)
            with self.lock:
                self.counts[what] += 1
                self.finished.append((time.monotonic(), time.monotonic() - asked))

    def _got(self, place: int) -> str:
        try:
            answer = ask(self.server.address, self.prompts[place], place)
            if answer.status_code != 200:
                return f"status {answer.status_code}"
            return "right" if np.array_equal(picture(answer), self.wanted[place]) else "wrong"
        except httpx.HTTPError as error:
            return type(error).__name__


def load(server: Served, clients: int, minutes: float) -> dict[str, Any]:
    """Clients ask for some time, while replicas are killed."""
    asking = Clients(server)
    began, killed = time.monotonic(), list[float]()
    ends = began + 60 * minutes

    def kill() -> None:
        while time.monotonic() < ends - EVERY / 2:
            time.sleep(1)
            at_work = [one for one in replicas(server) if time.time() - one.create_time() > EVERY]
            if len(at_work) == REPLICAS:
                at_work[0].kill()
                killed.append(time.monotonic() - began)

    with ThreadPoolExecutor(clients + 1) as pool:
        killing = pool.submit(kill)
        list(pool.map(lambda number: asking.ask(number, lambda: time.monotonic() < ends), range(clients)))
        killing.result()
    ordered = sorted(seconds for _, seconds in asking.finished)
    times = {"p50": ordered[len(ordered) // 2], "p99": ordered[int(0.99 * (len(ordered) - 1))], "longest": ordered[-1]}
    return {"counts": dict(asking.counts), "killed": killed, "clients": clients, "minutes": minutes, **times}


def measure(minutes: float, clients: int) -> dict[str, Any]:
    with serving("replicas", "--preset=exact", "--ray", "--replicas", str(REPLICAS), "--waiting", "64") as server:
        return {**results.result([]), **load(server, clients, minutes)}


def page(result: dict[str, Any]) -> str:
    counts = result["counts"]
    intro = (
        f"`mmaccel serve image --ray --replicas {REPLICAS}` with {MODEL} and {result['clients']} clients for"
        f" {result['minutes']:g} minutes, by `python -m mmaccel.demos.serving.replica_kills`: {len(result['killed'])}"
        f" times a replica was killed, and **{counts.get('right', 0)} of {sum(counts.values())}** answers were the"
        f" plain model's picture. p50 {result['p50']:.2f} s, p99 {result['p99']:.2f} s, the longest"
        f" {result['longest']:.1f} s. All is in [replica_kills.json](replica_kills.json)."
    )
    lines = [(what, str(count)) for what, count in counts.items()]
    return pages.page(result, "Replicas that are killed", intro, {"What clients got": pages.markdown(HEADINGS, lines)})


if __name__ == "__main__":
    pages.run(__doc__, page, measure, threads=False, **load_options(minutes=5))
