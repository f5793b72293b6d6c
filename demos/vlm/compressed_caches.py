"""What compressed caches cost in quality, beside the presses of NVIDIA's kvpress on equal prompts.

    python -m mmaccel.demos.vlm.compressed_caches --output docs/benchmarks/long/compressed_caches

`MMACCEL_KVPRESS` names the Python of an environment with kvpress (`pip install kvpress gguf`): its transformers is
older than ours. Without it ours are measured alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tqdm import tqdm

import mmaccel
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.errors import SettingError
from mmaccel.vlm.bench import language_tasks
from mmaccel.vlm.decoder.compress_kv import CompressKV

from . import kvpress_rival

PYTHON = "MMACCEL_KVPRESS"  # environment variable with the Python of an environment that has kvpress
KEEP = 0.1
ANSWER = 12  # tokens of an answer about a needle
WAYS: dict[str, tuple[CompressKV, ...]] = {"plain": (), str(CompressKV(budget=KEEP)): (CompressKV(budget=KEEP),)}
HEADINGS = ("by", "way", "loss", "added", "added, worst text", "found")
INTRO = """
By `python -m mmaccel.demos.vlm.compressed_caches`: {model} in float32 reads prompts of {length} tokens, of which
{keep:.0%} are kept. *Loss* is nats per token over the next {new} tokens, on {texts} texts; *found* is of numbers
planted in others, of {needle_length} tokens, since the model itself misses some in longer ones. Ours, and presses of
*kvpress* with their own defaults, by that package and the transformers that it needs, on the same tokens: its plain row
says what the other versions change. All is in [compressed_caches.json](compressed_caches.json).
"""


def ours(model: Any, tokenizer: Any, texts: list[Any], needles: list[Any]) -> Iterator[dict[str, Any]]:
    """The loss of each text and what was found of each needle, by our methods."""
    reading = language_tasks.Reading(model, texts)
    for way, methods in WAYS.items():
        with mmaccel.accelerate(model, *methods) if methods else nullcontext(model) as target:
            for number in range(len(texts)):
                yield {"by": "mmaccel", "way": way, "text": number, "loss": reading.run(target, number)}
            for number, needle in enumerate(needles):
                found = language_tasks.found(target, tokenizer, needle)
                yield {"by": "mmaccel", "way": way, "needle": number, "found": found}


def start(python: str, texts: list[Any], needles: list[Any]) -> subprocess.Popen[str]:
    """The Python that has kvpress begins with the same tasks, beside ours."""
    tasks = {
        **language_tasks.weights(),
        "keep": KEEP,
        "answer": ANSWER,
        "texts": [(prompt[0].tolist(), following.tolist()) for prompt, following in texts],
        "needles": [needle.prompt[0].tolist() for needle in needles],
    }
    with tempfile.TemporaryFile("w+") as asked:
        json.dump(tasks, asked)
        asked.seek(0)
        return subprocess.Popen(
            [python, str(Path(kvpress_rival.__file__))], stdin=asked, stdout=subprocess.PIPE, text=True
        )


def theirs(process: subprocess.Popen[str], tokenizer: Any, needles: list[Any]) -> Iterator[dict[str, Any]]:
    """What that process found.

    Raises
    ------
    SettingError
        If it failed.
    """
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            row = {"by": "kvpress", **json.loads(line)}
            if "tokens" in row:
                answer = tokenizer.decode(row.pop("tokens")).strip()
                row["found"] = answer.startswith(needles[row["needle"]].number)
            yield row
    if process.returncode:
        raise SettingError(f"the Python that {PYTHON} names ended with {process.returncode}: it needs kvpress and gguf")


def page(result: dict[str, Any]) -> str:
    """The page of a result: a line for each way."""
    rows = result["rows"]
    ways = list(dict.fromkeys((row["by"], row["way"]) for row in rows))
    facts = {name: result[name] for name in ("model", "length", "needle_length", "keep", "new")}
    texts = len({row["text"] for row in rows if "text" in row})
    lines = [_line(rows, by, way) for by, way in ways]
    return pages.page(
        result,
        "Compressed caches",
        INTRO.format(**facts, texts=texts),
        {"Loss and needles": pages.markdown(HEADINGS, lines)},
    )


def _line(rows: list[dict[str, Any]], by: str, way: str) -> list[str]:
    rows = [row for row in rows if row["by"] == by]
    plain, own = ({r["text"]: r["loss"] for r in rows if r["way"] == of and "text" in r} for of in ("plain", way))
    found = [row["found"] for row in rows if row["way"] == way and "needle" in row]
    added = {text: own[text] - plain[text] for text in own}
    worst = max(added, key=lambda text: added[text])
    return [
        by,
        way,
        f"{statistics.mean(own.values()):.3f}",
        f"{statistics.mean(added.values()):+.3f}",
        f"{added[worst]:+.3f} ({language_tasks.kind_of(worst)})",
        f"{sum(found)} of {len(found)}",
    ]


def measure(length: int, needle_length: int, count: int) -> dict[str, Any]:
    """Our ways, and those of kvpress if its Python is named."""
    model, tokenizer = language_tasks.load()
    texts = [language_tasks.text_task(tokenizer, length, seed) for seed in range(count)]
    needles = [language_tasks.needle_task(tokenizer, needle_length, seed) for seed in range(count)]
    python = os.environ.get(PYTHON)
    rival = start(python, texts, needles) if python else None
    made = [*tqdm(ours(model, tokenizer, texts, needles), desc="mmaccel", total=2 * len(WAYS) * count)]
    if rival is not None:
        made += tqdm(theirs(rival, tokenizer, needles), desc="kvpress")
    lengths = {"length": length, "needle_length": needle_length}
    more = {"model": language_tasks.MODEL, **lengths, "keep": KEEP, "new": language_tasks.NEW}
    return {**results.result(made), **more}


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        length={"type": int, "default": 8000, "help": "tokens of a prompt"},
        needle_length={"type": int, "default": 4000, "help": "tokens of a prompt with a planted number"},
        texts={"type": int, "default": 8, "help": "number of texts and of planted numbers", "dest": "count"},
    )
