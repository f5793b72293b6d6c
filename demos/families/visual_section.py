"""The part of the page of model families that shows what ran on vision-language models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from mmaccel.bench.pages import markdown
from mmaccel.vlm.families.rows import REFUSED, UNTRIED

from .notes import by_class, by_reason, note, shares
from .text_section import text_lines
from .visual_models import UNTRIED as UNTRIED_CLASSES
from .visual_table import TARGET, count_served

RAN = """Every class of transformers that puts pictures or videos at placeholders of a prompt, built small and
run by `python -m mmaccel.demos.families.visual_table`. On {served} of {all} classes at least six methods leave tokens
out. On all of them keeping all tokens gives the plain tokens and logits bit for bit, in a padded batch of three, with
three beams and in a second turn (the last column says where transformers' own call is no measure), and nothing is left
behind. Where a method reads the attention in the vision tower, a change of one number of a picture showed that it is
laid on the right tokens. Where positions do not count up, tokens that stay, and those of the answer, have the ones
that they have with the whole prompt. Several pictures in a prompt stay apart; where the processor hands a video over
as pictures (InternVL, SmolVLM), those that follow each other in a prompt are its frames, and for SmolVLM so are the
tiles of one picture, which nothing tells from frames. Audio is left alone."""


def section(planned: Iterable[str]) -> Iterator[str]:
    """The tables of the vision-language models and of the language models, which were run."""
    yield from planned
    found = json.loads(TARGET.read_text(encoding="utf-8"))
    yield RAN.format(served=count_served(found), all=len(found))
    lines = [
        [f"`{name}`", shares(row["kept"]), _plainness(row["exact"]), "yes" if row["merged"] else ""]
        for name, row in found.items()
    ]
    kept = "methods that work, and the share of the tokens that they kept of 40 %"
    yield markdown(("class", kept, "equal", "`EarlyTom` merges frames in the tower"), lines)
    told = {name: row["refused"] for name, row in found.items()}
    short = {name: name.removesuffix("ForConditionalGeneration") for name in found}
    yield note(by_reason("vlm", told, short))
    refused = by_class({**REFUSED, **dict.fromkeys(UNTRIED_CLASSES, UNTRIED)})
    yield note(refused, "Classes of which no tokens can be left out")
    yield from text_lines()


def _plainness(exact: dict[str, Any]) -> str:
    """Where keeping all tokens is the plain call, and why it is not compared elsewhere."""
    apart = [f"{what} not compared: {why}" for what, why in exact.items() if isinstance(why, str)]
    return "; ".join([", ".join(what for what, is_so in exact.items() if is_so is True), *apart])
