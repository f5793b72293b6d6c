"""The table of what works on which causal language model of transformers: drafts and caches are run on every class.

    python -m mmaccel.demos.families.text_table

It writes `docs/text_families.json`, from which the site makes its page; takes about half an hour on one core, and goes
on where it stopped. Run it whenever a class was added to `text_models.json`. A test runs a part of it, and compares.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import transformers

import mmaccel
from mmaccel import vlm
from mmaccel.cache.argument import cache_of, cached
from mmaccel.errors import MmaccelError
from mmaccel.method import Method
from mmaccel.testing.snapshot import snapshot
from mmaccel.vlm.visual_examples import VOCABULARY

from .text_models import build, call, rows
from .written import DOCS, write

TARGET = DOCS / "text_families.json"
BATCH = 3  # the second prompt is padded
WRONG = 5  # every so manieth of the tokens that `TextDraft` is told is another
DRAFTS: tuple[Method, ...] = (
    vlm.FusedDraft(always=True),
    vlm.SuffixDecoding(shortest=1),
    vlm.TextDraft(always=True, block=6),
    vlm.TokenRecycling(always=True),
)
# At settings by which all is kept, and yet by way of the method.
CACHES: tuple[Method, ...] = (
    vlm.SelectKV(budget=None, tokens=10**6, dense_layers=0),
    vlm.CompressKV(budget=None, tokens=10**6),
    vlm.SparsePrefill(budget=0.01, min_length=16, block_m=16, block_n=16, min_keys=10**6, always=True),
    vlm.PrefillDrop(keep=0.999, min_length=16),
)
STORED: tuple[Method, ...] = (vlm.StoredContext(least=16), vlm.JoinedContext(least=16, recomputed=16))


def main() -> None:
    transformers.logging.set_verbosity_error()
    write(TARGET, rows(), tried)


def tried(name: str) -> dict[str, Any]:
    """What methods did on a small model of a class.

    Returns
    -------
    Whether each method gave the plain tokens, and why others were refused, or left the call to the model; why the texts
    of a batch are not verified in trees of their own; what transformers itself cannot do; and whether nothing was left
    behind. Drafts and caches are compared in a text, in another turn on its cache, and in a padded batch.
    """
    model = build(name)
    plain, before, equal, refused = Plain(model), snapshot(model), {}, {}
    apart: dict[str, str] = {}
    if "one" not in plain.texts:
        return {"equal": {}, "refused": {}, **plain.lacks, "clean": True}
    for method in (*DRAFTS, *CACHES, *STORED):
        label = method.name.removeprefix("vlm.")
        try:
            is_so, why, chains = compared(model, method, plain)
        except MmaccelError as error:
            refused[label] = str(error)
            continue
        apart |= {"chains": chains} if chains else {}
        if why:
            refused[label] = why
        if not (why and is_so):
            equal[label] = is_so
    clean = snapshot(model) == before and plain.same(model, "one")
    return {"equal": equal, "refused": refused, **apart, **plain.lacks, "clean": clean}


class Plain:
    """The `texts` that a model writes of itself, and of what it `lacks`, why transformers' own call fails."""

    def __init__(self, model: Any) -> None:
        self.texts: dict[str, torch.Tensor] = {}
        self.lacks: dict[str, str] = {}
        for name in CALLS:
            try:
                self.texts[name] = CALLS[name](model)
            except Exception as error:  # whatever its code does
                self.lacks[name] = f"{type(error).__name__}: {error}".split("\n")[0][:120]
        if not self.same(model, "one"):
            self.lacks["one"] = "its own text differs from call to call"
            self.texts.clear()

    def same(self, target: Any, name: str, **more: Any) -> bool:
        """Whether a call gives the same; what the model itself cannot do is not compared."""
        return name not in self.texts or torch.equal(CALLS[name](target, **more), self.texts[name])


def compared(model: Any, method: Method, plain: Plain) -> tuple[bool, str, str]:
    """Whether a method gives the plain tokens; what it says where it did nothing; and why drafts were chains."""
    with tempfile.TemporaryDirectory() as folder:
        more = {"folder": folder} if method in STORED else {}
        with mmaccel.accelerate(model, replace(method, **more)) as fast:
            if method in STORED:  # of one text at a time, which the second call reads from the disk
                given = {"contexts": [(0, 20)]} if isinstance(method, vlm.JoinedContext) else {}
                is_so = plain.same(fast, "one", **given) & plain.same(fast, "one", **given)
            else:
                names = ("turns", "batch") if method in CACHES[:2] + DRAFTS[:1] else ("batch",)
                is_so = all(plain.same(fast, name, **told(method, plain, name)) for name in names)
            report = fast.report
    left = [text for text in report.warnings if text.startswith(("the model's own loop", f"{method.name} ran plainly"))]
    return is_so, left[0] if left else "", report.details.get("chains", "")


def told(method: Method, plain: Plain, name: str) -> dict[str, Any]:
    """What a method is told in a call: the plain answer with mistakes."""
    if not isinstance(method, vlm.TextDraft) or name not in plain.texts:
        return {}
    answers = plain.texts[name][:, call(1)["input_ids"].shape[1] :].clone()
    answers[:, WRONG - 1 :: WRONG] = (answers[:, WRONG - 1 :: WRONG] + 1) % VOCABULARY
    return {"prediction": answers}


def turns(target: Any) -> torch.Tensor:
    """The second answer of a conversation, to more words on the cache of the first."""
    first = target.generate(**call(1, return_dict_in_generate=True))
    ids = torch.cat([first.sequences, call(1)["input_ids"][:, :6]], 1)
    later = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **cached(cache_of(first))}
    return target.generate(**call(1, **later))


CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "one": lambda target, **more: target.generate(**call(1, **more)),
    "turns": turns,
    "batch": lambda target, **more: target.generate(**call(BATCH, **more)),
}


def count_drafted(found: dict[str, Any]) -> int:
    """Classes on which drafts give the plain tokens, in a text, in another turn and in a batch."""
    return sum(row["equal"].get("FusedDraft") is True for row in found.values())


if __name__ == "__main__":
    main()
