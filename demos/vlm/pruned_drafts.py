"""Answer questions about clips with fewer visual tokens, with drafts, and with both, and write down what each takes.

    python -m mmaccel.demos.vlm.pruned_drafts --output docs/benchmarks/long/pruned_drafts

On `tiny-onevision`, on clips of brief events of 32 frames that it never saw. All ways answer each question in turns, a
session each that stays, so that drafts learn from the answers before. What is wanted: with both the very answers of
fewer tokens alone, in no more time.
"""

from __future__ import annotations

import time
from typing import Any

from tqdm import tqdm

import mmaccel
from mmaccel import vlm, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.vlm.answering import prepare

MODEL = "tiny-onevision"
NEW = 16  # tokens of an answer; all of them are written, so that every way writes as many


def ways(keep: float) -> dict[str, tuple[Any, ...]]:
    """What each way applies; those with drafts follow the one whose answers they must give."""
    fewer: tuple[Any, ...] = (vlm.HoliTom(keep=keep, tau=0.9), vlm.VisionZip(keep=keep), vlm.FastV(keep=2 * keep))
    drafts = vlm.FusedDraft()
    alone = {"plain": (), **{method.name.removeprefix("vlm."): (method,) for method in fewer}}
    return {way: methods for name, one in alone.items() for way, methods in both(name, one, drafts).items()}


def both(name: str, methods: tuple[Any, ...], drafts: Any) -> dict[str, tuple[Any, ...]]:
    return {name: methods, f"{name} + drafts": (*methods, drafts)}


def answer(model: Any, inputs: Any, session: Any) -> dict[str, Any]:
    """Tokens and seconds of one answer, in all and without the passes that read the prompt."""
    seen: list[float] = []
    with model.get_decoder().register_forward_hook(lambda *_: seen.append(time.thread_time())):
        began = time.thread_time()
        tokens = session.generate(**inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
        ended = time.thread_time()
    new = tokens[0, inputs["input_ids"].shape[1] :].tolist()
    return {"tokens": new, "seconds": ended - began, "decoding_seconds": ended - seen[0], "passes": len(seen)}


def page(result: dict[str, Any]) -> str:
    headings = ("way", "CPU ms an answer", "against plain", "after the prompt", "passes", "answers as without drafts")
    intro = (
        f"Questions about {result['clips']} clips of brief events, 32 frames each, by `{MODEL}`, in answers of {NEW}"
        " tokens, all of which are written; by `python -m mmaccel.demos.vlm.pruned_drafts`. Drafts are"
        " `vlm.FusedDraft()`. Medians of processor time; *after the prompt* is the time from the end of"
        " its pass to the last token. A short answer has little to draft: most of its time is the clip's."
    )
    return pages.page(
        result, "Fewer visual tokens and drafts", intro, {"Each and both": table(headings, result["rows"])}
    )


def table(headings: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    names = dict.fromkeys(row["way"] for row in rows)
    plain = _median(rows, "plain", "seconds")
    return pages.markdown(headings, [_line(name, rows, plain) for name in names])


def _line(name: str, rows: list[dict[str, Any]], plain: float) -> tuple[str, ...]:
    alone = {row["question"]: row["tokens"] for row in rows if row["way"] == name.removesuffix(" + drafts")}
    mine = [row for row in rows if row["way"] == name]
    same = sum(row["tokens"] == alone[row["question"]] for row in mine)
    return (
        name,
        f"{1000 * _median(rows, name, 'seconds'):.0f}",
        f"{plain / _median(rows, name, 'seconds'):.2f}x",
        f"{1000 * _median(rows, name, 'decoding_seconds'):.0f} ms",
        f"{_median(rows, name, 'passes'):.0f}",
        f"{same} of {len(mine)}" if name.endswith("drafts") else "",
    )


def _median(rows: list[dict[str, Any]], way: str, name: str) -> float:
    return results.median(row[name] for row in rows if row["way"] == way)


def measured(asked: list[Any], keep: float) -> Any:
    """A row for each question and way, each on a model of its own, in turns."""
    targets = {}
    for way, methods in ways(keep).items():
        model, processor = zoo.load(MODEL)
        targets[way] = model, mmaccel.accelerate(model, *methods) if methods else model
    for number, question in enumerate(asked):
        inputs = prepare(processor, question.frames, [question.question])
        for way, (model, session) in targets.items():
            yield {"way": way, "question": number, **answer(model, inputs, session)}


def measure(questions: int, keep: float) -> dict[str, Any]:
    """All questions."""
    asked = zoo.questions(MODEL, questions, seed=0, brief=True)
    result = results.result(tqdm(measured(asked, keep), unit="answer"))
    result["clips"] = len({id(question.frames) for question in asked})
    return result


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        questions={"type": int, "default": 40},
        keep={"type": float, "default": 0.15, "help": "share of the visual tokens (default 0.15)"},
    )
