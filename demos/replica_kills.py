"""Load a server of two replicas, kill one of them now and then, and write down what its clients get.

    python -m mmaccel.demos.replica_kills --minutes 5 --output docs/benchmarks/long/replica_kills

Clients ask for pictures with seeds, each as soon as it has the last one, and hold them against the plain model's. A
replica is killed whenever both have been there for twenty seconds; Ray Serve starts another one meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
import torch

from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.demos.serve_load import MODEL, Served, ask, measured, picture, plain_pictures, serving

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


def load(server: Served, clients: int, minutes: float) -> dict[str, Any]:
    """Clients ask for some time, while replicas are killed."""
    prompts = zoo.prompts(MODEL, 16, seed=5)
    wanted = plain_pictures(prompts)
    ends, counts, killed = time.monotonic() + 60 * minutes, Counter[str](), list[float]()
    began, lock, latencies = time.monotonic(), threading.Lock(), list[float]()

    def client(number: int) -> None:
        place = number
        while time.monotonic() < ends:
            place = (place + 1) % len(prompts)
            asked = time.monotonic()
            try:
                answer = ask(server.address, prompts[place], place)
                right = answer.status_code == 200 and np.array_equal(picture(answer), wanted[place])
                what = ("right" if right else "wrong") if answer.status_code == 200 else f"status {answer.status_code}"
            except httpx.HTTPError as error:
                what = type(error).__name__
            with lock:
                counts[what] += 1
                latencies.append(time.monotonic() - asked)

    def kill() -> None:
        while time.monotonic() < ends - EVERY / 2:
            time.sleep(1)
            at_work = [one for one in replicas(server) if time.time() - one.create_time() > EVERY]
            if len(at_work) == REPLICAS:
                at_work[0].kill()
                killed.append(time.monotonic() - began)

    with ThreadPoolExecutor(clients + 1) as pool:
        killing = pool.submit(kill)
        list(pool.map(client, range(clients)))
        killing.result()
    ordered = sorted(latencies)
    times = {"p50": ordered[len(ordered) // 2], "p99": ordered[int(0.99 * (len(ordered) - 1))], "longest": ordered[-1]}
    return {"counts": dict(counts), "killed": killed, "clients": clients, "minutes": minutes, **times}


def measure(minutes: float, clients: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    with serving("replicas", "--preset=exact", "--ray", "--replicas", str(REPLICAS), "--waiting", "64") as server:
        return {**results.result([]), **load(server, clients, minutes)}


def page(result: dict[str, Any]) -> str:
    counts = result["counts"]
    intro = (
        f"`mmaccel serve image --ray --replicas {REPLICAS}` with {MODEL} and {result['clients']} clients for"
        f" {result['minutes']:g} minutes, by `python -m mmaccel.demos.replica_kills`: {len(result['killed'])} times a"
        f" replica was killed, and **{counts.get('right', 0)} of {sum(counts.values())}** answers were the plain"
        f" model's picture. p50 {result['p50']:.2f} s, p99 {result['p99']:.2f} s, the longest"
        f" {result['longest']:.1f} s. All is in [replica_kills.json](replica_kills.json)."
    )
    lines = [(what, str(count)) for what, count in counts.items()]
    return pages.page(result, "Replicas that are killed", intro, {"What clients got": pages.markdown(HEADINGS, lines)})


def main(argv: list[str] | None = None) -> None:
    measured(argv, __doc__, measure, page, 5)


if __name__ == "__main__":
    main()
