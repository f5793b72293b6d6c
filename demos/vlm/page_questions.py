"""Prompts of pages of several kinds of text, with what is asked of them: planted numbers, and to read on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel import vlm
from mmaccel.vlm.bench.language_tasks import CITIES, NEW
from mmaccel.vlm.bench.language_texts import KINDS, text_of

Call = dict[str, Any]
ASKED = "You are given some pages. Answer the question after them with what they say."
EARLIER = "The following texts were found in an archive, in no order. Sum up what they are about, in one sentence."
SINGLE = "telephone number of the lighthouse"
PAGES, TOKENS = (4, 5, 6), (300, 500)  # of a prompt, and of a page


@dataclass(frozen=True)
class Question:
    """A prompt whose last words are asked about one of its pages.

    Attributes
    ----------
    inputs
        Of :func:`mmaccel.vlm.mark_contexts`, `contexts` with them.
    last
        Arguments of `generate` for the same with the last page alone.
    answer
        Tokens of the number that was planted, or of what follows.
    about
        "single", the one number of its kind; "earlier" or "last", which page has a number that others have the like
        of; or "on", to read on from the end of the last page.
    """

    inputs: Call
    last: Call
    answer: torch.Tensor
    about: str

    def plain(self) -> Call:
        """Arguments of `generate` of a model that knows nothing of pages."""
        return without_contexts(self.inputs)


def without_contexts(inputs: Call) -> Call:
    return {name: value for name, value in inputs.items() if name != "contexts"}


@dataclass(frozen=True)
class Page:
    """A text, what it tells the number of, that number, and the tokens that follow the text."""

    text: str
    thing: str
    number: str
    following: list[int]


def drawn(tokenizer: Any, seed: int) -> list[Page]:
    """The pages of a prompt."""
    draw = random.Random(seed)
    count = PAGES[seed % len(PAGES)]
    found = []
    things = [f"secret number of {city}" for city in draw.sample(CITIES, count)]
    things[count // 2] = SINGLE
    for kind, thing in zip(draw.sample(list(KINDS), count), things, strict=True):
        number, size = str(draw.randrange(10_000, 100_000)), draw.randint(*TOKENS)
        ids = tokenizer(text_of(kind, 8 * (size + NEW), draw.getrandbits(32))).input_ids
        needle = tokenizer(f"\n\nThe {thing} is {number}. Remember it.\n\n").input_ids
        place = draw.randrange(20, size - len(needle) - 20)
        ids = ids[:place] + needle + ids[place:]
        found.append(Page(tokenizer.decode(ids[:size]), thing, number, ids[size : size + NEW]))
    return found


def prompt_of(tokenizer: Any, system: str, texts: list[str], end: str) -> Call:
    """A prompt of pages between other words, which are marked."""
    told = "".join(f"\n\nPage {number}:\n{text}" for number, text in enumerate(texts, 1))
    return vlm.mark_contexts(tokenizer, f"{system}{told}{end}", texts)


def questions(tokenizer: Any, seed: int) -> tuple[Call, list[Question]]:
    """What was read before, and what is asked: the first page, one between, and the last, from which it reads on."""
    made = drawn(tokenizer, seed)
    texts = [page.text for page in made]
    asked = []
    for about, page in (("earlier", made[0]), ("single", made[len(made) // 2]), ("last", made[-1])):
        end = f"\n\nQuestion: What is the {page.thing}?\nThe {page.thing} is"
        answer = tokenizer(f" {page.number}", add_special_tokens=False).input_ids
        asked.append(_question(tokenizer, texts, end, answer, about))
    asked.append(_question(tokenizer, texts, "", made[-1].following, "on"))
    return prompt_of(tokenizer, EARLIER, texts[::-1], "\n\nSummary:"), asked


def _question(tokenizer: Any, texts: list[str], end: str, answer: list[int], about: str) -> Question:
    inputs, last = (prompt_of(tokenizer, ASKED, some, end) for some in (texts, texts[-1:]))
    return Question(inputs, without_contexts(last), torch.tensor(answer), about)
