"""Load a server of one to two replicas, leave it nearly alone, and write down how many it has and what clients get.

    python -m mmaccel.demos.serving.replica_scaling --minutes 4 --output docs/benchmarks/long/replica_scaling

Clients ask for pictures with seeds, each as soon as it has the last one, and hold them against the plain model's. After
the minutes all but one have left, which goes on until one replica is left too, and a little longer.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.demos.serving.replica_kills import Clients, replicas
from mmaccel.demos.serving.serve_load import MODEL, Served, load_options, serving

LEAST, MOST = 1, 2
LOADING = 20  # seconds from the start of a replica's process until it surely answers
LONGEST = 15 * 60  # seconds to wait for Ray Serve to drain a replica
AFTER = 10  # seconds that the last client asks when it is drained
HEADINGS = ("seconds", "replicas", "clients")


def watched(server: Served, clients: int, minutes: float) -> dict[str, Any]:
    """What clients get, and how many replicas there are meanwhile."""
    asking, over = Clients(server), threading.Event()
    began = time.monotonic()
    ends = began + 60 * minutes
    changes = [(0.0, len(replicas(server)))]

    def watch() -> None:
        until = ends + LONGEST
        while time.monotonic() < until:
            now, count = time.monotonic(), len(replicas(server))
            if count != changes[-1][1]:
                changes.append((now - began, count))
            if now > ends and count == LEAST:
                until = min(until, now + AFTER)
            time.sleep(0.5)
        over.set()

    def client(number: int) -> None:
        asking.ask(number, lambda: not over.is_set() if number == 0 else time.monotonic() < ends)

    with ThreadPoolExecutor(clients + 1) as pool:
        watching = pool.submit(watch)
        list(pool.map(client, range(clients)))
        watching.result()
    added = next((when for when, count in changes if count == MOST), 60 * minutes)
    finished = [when - began for when, _ in asking.finished]
    return {
        "changes": changes,
        "counts": dict(asking.counts),
        "clients": clients,
        "minutes": minutes,
        "before_a_minute": _rate(finished, 0, added),
        "after_a_minute": _rate(finished, added + LOADING, 60 * minutes),
    }


def _rate(finished: list[float], since: float, until: float) -> float | None:
    """Answers a minute between two times."""
    return 60 * sum(since <= when < until for when in finished) / (until - since) if until > since else None


def measure(minutes: float, clients: int) -> dict[str, Any]:
    words = ("--preset=exact", "--ray", "--replicas", f"{LEAST}-{MOST}", "--waiting", "64")
    with serving("replicas", *words) as server:
        return {**results.result([]), **watched(server, clients, minutes)}


def page(result: dict[str, Any]) -> str:
    counts, changes, busy = result["counts"], result["changes"], 60 * result["minutes"]
    rates = [result["before_a_minute"], result["after_a_minute"]]
    gained = "" if None in rates else f" Pictures a minute went from {rates[0]:.0f} to {rates[1]:.0f}."
    intro = (
        f"`mmaccel serve image --ray --replicas {LEAST}-{MOST}` with {MODEL}, {result['clients']} clients for"
        f" {result['minutes']:g} minutes and one client after them, by `python -m"
        " mmaccel.demos.serving.replica_scaling`:"
        f" **{counts.get('right', 0)} of {sum(counts.values())}** answers were the plain model's picture, while Ray"
        f" Serve added a replica and drained it.{gained} All is in [replica_scaling.json](replica_scaling.json)."
    )
    rows = [(f"{when:.0f}", str(count), str(result["clients"] if when < busy else 1)) for when, count in changes]
    return pages.page(result, "Replicas as many as needed", intro, {"Replicas": pages.markdown(HEADINGS, rows)})


if __name__ == "__main__":
    pages.run(__doc__, page, measure, threads=False, **load_options(minutes=4))
