"""Load two servers of speech or of video, accelerated and plain, in turns, and write down what clients get of each.

    python -m mmaccel.demos.serving.serve_loads --kind video --minutes 4 --output docs/benchmarks/long/serve_video

Clients send recordings, or ask for clips and fetch them, each as soon as it has the last answer, and hold it against
the same server's when it had nothing else to do. At the end many more clients than the queue takes ask at once, and
those that were let in leave.
"""

from __future__ import annotations

import io
import itertools
import time
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.demos.serving.serve_load import CROWD, HTTP, TURN, Served, cells, load_options, serving, turn
from mmaccel.speech.audio.recordings import load_recordings

SAMPLE_RATE = 16_000
STEPS = "40"  # those that the presets of video were measured with
LEAVE = 5.0  # seconds after which a client of the crowd leaves
HEADINGS = ("server", "answers", "answers a minute", "p50, s", "p99, s", "wrong", "memory first, MiB", "last, MiB")


@dataclass(frozen=True)
class Kind:
    """What is asked of a server.

    Attributes
    ----------
    name, model
        Of `mmaccel serve`.
    servers
        The slower one and the faster one: a label, and words of the command line.
    noun
        What is sent or asked for, in a sentence.
    questions
        They are asked in turns.
    ask
        Sends a question from a client to an address; a promised answer is not waited for.
    answer
        What a response, or what it promises, says in the end.
    equal
        Whether two answers are the same to who sees them.
    within
        By how much they may differ all the same, in words.
    cancel
        Takes back what a response promised; nothing to do where the answer was already there.
    """

    name: str
    model: str
    servers: tuple[tuple[str, tuple[str, ...]], ...]
    noun: str
    questions: Callable[[], list[Any]]
    ask: Callable[[httpx.Client, str, Any], httpx.Response]
    answer: Callable[[str, httpx.Response], Any]
    equal: Callable[[Any, Any], bool]
    within: str = ""
    cancel: Callable[[httpx.Client, str, httpx.Response], object] = lambda client, address, response: None


def recordings() -> list[bytes]:
    """Six seconds of speech, from several places of a recording."""
    samples = load_recordings(["two_cities.wav"])[0].samples
    return [_wave(samples[start * SAMPLE_RATE : (start + 6) * SAMPLE_RATE]) for start in range(0, 32, 4)]


def _wave(samples: Any) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((samples.clamp(-1, 1) * 32767).short().numpy().tobytes())
    return target.getvalue()


def send(client: httpx.Client, address: str, recording: bytes) -> httpx.Response:
    return client.post(f"{address}/v1/audio/transcriptions", files={"file": ("a.wav", recording)})


def promise(client: httpx.Client, address: str, question: tuple[int, str]) -> httpx.Response:
    seed, prompt = question
    asked = {"prompt": prompt, "seconds": "1", "size": "64x64", "steps": STEPS, "seed": str(seed)}
    return client.post(f"{address}/v1/videos", files={name: (None, value) for name, value in asked.items()})


def clip(address: str, response: httpx.Response) -> bytes:
    """The file that is promised, once it is there; it is deleted from the server then."""
    place = f"{address}/v1/videos/{response.json()['id']}"
    while (status := HTTP.get(place).json()["status"]) != "completed":
        if status == "failed":
            raise httpx.HTTPError(HTTP.get(place).json()["error"]["message"])
        time.sleep(0.05)
    content = HTTP.get(f"{place}/content").raise_for_status().content
    HTTP.delete(place)
    return content


def withdraw(client: httpx.Client, address: str, response: httpx.Response) -> None:
    """Delete a clip that was promised at once, as soon as a client would leave that waits for its answer."""
    time.sleep(LEAVE)
    client.delete(f"{address}/v1/videos/{response.json()['id']}")


def frames(data: bytes) -> Any:
    import av

    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(np.float32)


LEVELS = 2  # of 255, within which clips are taken for equal


def looks_equal(one: bytes, other: bytes) -> bool:
    """Two clips differ by less than that on the mean; x264 writes equal frames differently now and then."""
    before, after = frames(one), frames(other)
    return before.shape == after.shape and float(np.abs(before - after).mean()) < LEVELS


KINDS = {
    "speech": Kind(
        "speech",
        "moonshine-tiny",
        (("as it comes", ()), ("--packed", ("--packed",))),
        "recordings of six seconds",
        recordings,
        send,
        lambda address, response: response.raise_for_status().json()["text"],
        str.__eq__,
    ),
    "video": Kind(
        "video",
        "tiny-wan",
        (
            ("--plain", ("--plain",)),
            ('preset="balanced"', ("--preset", "balanced")),
        ),
        f"clips of one second in {STEPS} steps",
        lambda: list(enumerate(zoo.prompts("tiny-wan", 8, seed=5))),
        promise,
        lambda address, response: clip(address, response.raise_for_status()),
        looks_equal,
        f", within {LEVELS} of 255 levels on the mean",
        withdraw,
    ),
}


@dataclass
class Load:
    """One server under load."""

    kind: Kind
    server: Served
    questions: list[Any]
    wanted: list[Any] = field(default_factory=list)

    def get(self, place: int) -> Any:
        address = self.server.address
        return self.kind.answer(address, self.kind.ask(HTTP, address, self.questions[place]))

    def is_right(self, place: int, answer: Any) -> bool:
        return self.kind.equal(answer, self.wanted[place])

    def alone(self) -> None:
        """What the server answers while nobody else asks."""
        self.get(0)  # the first answer of a process is slower
        self.wanted = [self.get(place) for place in range(len(self.questions))]

    def turn(self, clients: int, seconds: float) -> None:
        turn(self.server, clients, seconds, len(self.questions), self.get, self.is_right)

    def crowd(self) -> dict[str, Any]:
        """Many clients at once: how many are refused, and how soon; then all leave, and one more asks."""
        address, refusals = self.server.address, list[float]()

        def one(leaving: httpx.Client, question: Any) -> None:
            asked = time.perf_counter()
            try:
                response = self.kind.ask(leaving, address, question)
            except httpx.TimeoutException:
                return
            if response.status_code == 503:
                refusals.append(time.perf_counter() - asked)
            else:
                self.kind.cancel(leaving, address, response)

        with ThreadPoolExecutor(CROWD) as pool, ExitStack() as stack:
            clients = [stack.enter_context(httpx.Client(timeout=LEAVE, verify=False)) for _ in range(CROWD)]
            list(pool.map(one, clients, itertools.cycle(self.questions)))
        asked = time.perf_counter()
        self.get(0)
        last = max(refusals, default=None)
        after = time.perf_counter() - asked
        return {"asked": CROWD, "refused": len(refusals), "slowest_refusal": last, "after_they_left": after}


def measure(served: str, minutes: float, clients: int) -> dict[str, Any]:
    kind = KINDS[served]
    questions = kind.questions()
    with ExitStack() as stack:
        loads = list[Load]()
        for label, words in kind.servers:
            server = stack.enter_context(serving(label, *words, kind=kind.name, model=kind.model))
            loads.append(Load(kind, server, questions))
            loads[-1].alone()
        for _ in tqdm(range(max(1, round(minutes * 60 / TURN / len(loads)))), desc="turns", unit="pair"):
            for load in loads:
                load.turn(clients, TURN)
        rows, last = [load.server.row() for load in loads], loads[-1].crowd()
    same = sum(map(kind.equal, loads[0].wanted, loads[1].wanted))
    more = {"clients": clients, "kind": kind.name, "crowd": last, "same": [same, len(questions)]}
    return {**results.result(rows), **more}


def page(result: dict[str, Any]) -> str:
    kind, rows, end = KINDS[result["kind"]], result["rows"], result["crowd"]
    plain, fast = (row["per_minute"] for row in rows)
    same, of = result["same"]
    soon = "" if end["slowest_refusal"] is None else f", the last after {1000 * end['slowest_refusal']:.0f} ms"
    intro = (
        f"`mmaccel serve {kind.name}` with {kind.model} and {result['clients']} clients that ask for {kind.noun}, by"
        f" `python -m mmaccel.demos.serving.serve_loads --kind {kind.name}`: **{fast / plain:.2f}x** as many answers by"
        f" {rows[1]['server']} as by {rows[0]['server']}. Clients went from one server to the other every {TURN}"
        f" seconds, each server on one thread. An answer is wrong if it is not what the same server gave while nobody"
        f" else asked{kind.within}; {same} of {of} of those were the same for both servers. At the end"
        f" {end['asked']} clients asked at once: {end['refused']} were answered 503{soon}; the others left after"
        f" {LEAVE:.0f} s, and the next one was answered after {end['after_they_left']:.1f} s. Other work may have run"
        f" on the machine at the same time, which makes times longer. All is in"
        f" [serve_{kind.name}.json](serve_{kind.name}.json)."
    )
    lines = [cells(row) for row in rows]
    title = f"A server of {kind.name} under load"
    return pages.page(result, title, intro, {"What clients got": pages.markdown(HEADINGS, lines)})


if __name__ == "__main__":
    kind = {"choices": list(KINDS), "required": True, "help": "what is served", "dest": "served"}
    pages.run(__doc__, page, measure, threads=False, kind=kind, **load_options(minutes=4))
