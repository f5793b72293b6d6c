"""Load two servers of one model, accelerated and plain, in turns, and write down what clients get of each.

    python -m mmaccel.demos.serving.serve_load --minutes 10 --output docs/benchmarks/long/serve_load

Clients ask for pictures, each as soon as it has the last one, every second time with a seed: those pictures are held
against the plain model's. Both servers are up all the time; the clients go from one to the other every half minute.
At the end, many more clients than the queue takes ask at once.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import psutil
from PIL import Image
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.image.generation import ImageSettings, load

MODEL, TURN, CROWD = "tiny-janus", 30, 40  # seconds at one server, and clients that ask at once at the end
HTTP = httpx.Client(timeout=300, limits=httpx.Limits(max_connections=2 * CROWD))
COMMAND = "from mmaccel.cli.main import main; raise SystemExit(main())"
HEADINGS = ("server", "pictures", "pictures a minute", "p50, s", "p99, s", "wrong", "memory first, MiB", "last, MiB")


@dataclass
class Served:
    """A server, and what its clients got."""

    label: str
    address: str
    process: subprocess.Popen[str]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    resident: list[int] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        ordered = sorted(self.latencies)
        return {
            "server": self.label,
            "pictures": len(ordered),
            "per_minute": 60 * len(ordered) / self.seconds,
            "p50": statistics.median(ordered),
            "p99": ordered[int(0.99 * (len(ordered) - 1))],
            "wrong": self.wrong,
            "resident_bytes": self.resident,
        }


@contextmanager
def serving(label: str, *words: str, kind: str = "image", model: str = MODEL) -> Iterator[Served]:
    """A server in a process of its own, on one thread."""
    command = [sys.executable, "-c", COMMAND, "serve", kind, "--model", model, "--port", "0", *words]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert started.stdout is not None
        found = re.search(r"http://[\d.:]+", started.stdout.readline())
        assert found is not None, "the server did not start"
        yield Served(label, found[0], started)
    finally:
        started.terminate()
        started.wait()


def ask(address: str, prompt: str, seed: int | None) -> httpx.Response:
    body = {"prompt": prompt, **({} if seed is None else {"seed": seed})}
    return HTTP.post(f"{address}/v1/images/generations", json=body)


def picture(answer: httpx.Response) -> np.ndarray[Any, Any]:
    data = answer.raise_for_status().json()["data"][0]["b64_json"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def plain_pictures(prompts: list[str]) -> list[np.ndarray[Any, Any]]:
    """The plain model's, whose seeds are their places."""
    painter = load(MODEL)
    drawn = (painter.paint(painter.target, [text], ImageSettings(seed=i)) for i, text in enumerate(prompts))
    return [np.asarray(one.pictures[0]) for one in tqdm(drawn, desc="plain pictures", total=len(prompts))]


def turn(
    server: Served, clients: int, seconds: float, count: int, get: Callable[[int], Any], is_right: Callable[..., bool]
) -> None:
    """Clients ask one server for some time; `get` asks one of `count` questions, by its place, and gives the answer."""
    began, lock, places = time.perf_counter(), threading.Lock(), itertools.count()

    def client(_: int) -> None:
        while time.perf_counter() - began < seconds:
            place = next(places) % count
            asked = time.perf_counter()
            got = get(place)
            with lock:
                server.latencies.append(time.perf_counter() - asked)
                server.wrong += not is_right(place, got)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    server.seconds += time.perf_counter() - began
    server.resident.append(psutil.Process(server.process.pid).memory_info().rss)


def crowd(server: Served, prompt: str) -> dict[str, Any]:
    """Many clients at once: how many are refused, and how soon."""

    def one(_: int) -> tuple[int, float]:
        asked = time.perf_counter()
        return ask(server.address, prompt, None).status_code, time.perf_counter() - asked

    with ThreadPoolExecutor(CROWD) as pool:
        found = list(pool.map(one, range(CROWD)))
    refused = sorted(seconds for status, seconds in found if status == 503)
    return {"asked": CROWD, "refused": len(refused), "slowest_refusal": refused[-1] if refused else None}


def measure(minutes: float, clients: int) -> dict[str, Any]:
    prompts = zoo.prompts(MODEL, 16, seed=5)
    wanted = plain_pictures(prompts)
    # each prompt once with its seed and once without
    questions = [(text, i if (i + again) % 2 == 0 else None) for again in (0, 1) for i, text in enumerate(prompts)]

    def get(server: Served, place: int) -> np.ndarray[Any, Any]:
        return picture(ask(server.address, *questions[place]))

    def is_right(place: int, got: np.ndarray[Any, Any]) -> bool:
        seed = questions[place][1]
        return seed is None or np.array_equal(got, wanted[seed])

    with ExitStack() as stack:
        kinds = (("plain", "--plain"), ('preset="exact"', "--preset=exact"))
        servers = [stack.enter_context(serving(label, word)) for label, word in kinds]
        for server in servers:
            ask(server.address, prompts[0], None)  # the first picture of a process is slower
        for _ in tqdm(range(max(1, round(minutes * 60 / TURN / len(servers)))), desc="turns", unit="pair"):
            for server in servers:
                turn(server, clients, TURN, len(questions), functools.partial(get, server), is_right)
        last = crowd(servers[-1], prompts[0])
        return {**results.result([server.row() for server in servers]), "clients": clients, "crowd": last}


def cells(row: dict[str, Any]) -> list[str]:
    """A server's line in the table of a page."""
    return [
        row["server"],
        str(row["pictures"]),
        f"{row['per_minute']:.0f}",
        f"{row['p50']:.2f}",
        f"{row['p99']:.2f}",
        str(row["wrong"]),
        f"{row['resident_bytes'][0] / 2**20:.0f}",
        f"{row['resident_bytes'][-1] / 2**20:.0f}",
    ]


def page(result: dict[str, Any]) -> str:
    lines = [cells(row) for row in result["rows"]]
    plain, fast = (row["per_minute"] for row in result["rows"])
    end = result["crowd"]
    soon = "" if end["slowest_refusal"] is None else f", the last after {1000 * end['slowest_refusal']:.0f} ms"
    intro = (
        f"`mmaccel serve image` with {MODEL} and {result['clients']} clients, by `python -m"
        f" mmaccel.demos.serving.serve_load`: **{fast / plain:.2f}x** as many pictures as of the plain model behind the"
        f" same server. Clients went from one server to the other every {TURN} seconds, each server on one thread;"
        f" every second picture had a seed and was held against the plain model's. At the end {end['asked']} clients"
        f" asked at once: {end['refused']} were answered 503{soon}. All is in [serve_load.json](serve_load.json)."
    )
    return pages.page(result, "A server under load", intro, {"What clients got": pages.markdown(HEADINGS, lines)})


def load_options(minutes: float) -> dict[str, dict[str, Any]]:
    """The options of a script that loads a server."""
    return {"minutes": {"type": float, "default": minutes}, "clients": {"type": int, "default": 8}}


if __name__ == "__main__":
    pages.run(__doc__, page, measure, threads=False, **load_options(minutes=10))
