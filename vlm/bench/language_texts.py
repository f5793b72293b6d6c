"""Eight kinds of text for the benchmark of language: from Python's own library, or drawn; none is shipped.

What is taken from the library changes with the version of Python, which the header of a result names.
"""

from __future__ import annotations

import argparse
import ast
import html.entities
import inspect
import json
import pydoc_data.topics
import random
import unicodedata
from collections.abc import Callable, Iterator
from itertools import count

PEOPLE = ("Anna", "Boris", "Chloe", "Deniz", "Emil", "Farah", "Gita", "Hugo")
THINGS = ("kettle", "ladder", "violin", "bicycle", "lantern", "blanket", "camera", "compass", "teapot", "mirror")
PLACES = ("harbour", "library", "station", "market", "garden", "bakery", "museum", "bridge")
SERVICES = ("billing", "search", "mailer", "gateway", "index", "cache")
FOODS = ("onions", "lentils", "rice", "carrots", "tomatoes", "mushrooms", "potatoes", "beans")


def _prose(draw: random.Random) -> Iterator[str]:
    """Python's manual, its topics in an order of their own."""
    topics = list(pydoc_data.topics.topics.values())
    draw.shuffle(topics)
    return iter(topics)


def _code(draw: random.Random) -> Iterator[str]:
    """Source of the library, from the beginning of a module."""
    return map(inspect.getsource, (argparse, ast, inspect, random))


def _table(draw: random.Random) -> Iterator[str]:
    """Characters with what is known of them."""
    yield "| code | category | name | bidirectional |\n| --- | --- | --- | --- |"
    for code in count(0x2190):
        character = chr(code)
        name = unicodedata.name(character, "")
        if name:
            kind, direction = unicodedata.category(character), unicodedata.bidirectional(character)
            yield f"| U+{code:04X} | {kind} | {name.lower()} | {direction} |"


def _dialogue(draw: random.Random) -> Iterator[str]:
    """Two who look for things and tell each other where they saw them."""
    one, other = draw.sample(PEOPLE, 2)
    while True:
        thing, place, where = draw.choice(THINGS), draw.choice(PLACES), draw.choice(PLACES)
        hour, price = draw.randint(1, 12), draw.randint(5, 90)
        yield f"{one}: Have you seen the {thing} anywhere?"
        yield f"{other}: It was near the {place} at {hour} o'clock, but somebody may have moved it to the {where}."
        yield f"{one}: I paid {price} euros for it. If it is not at the {where}, I shall ask {draw.choice(PEOPLE)}."
        yield f"{other}: Then ask before noon. After that {draw.choice(PEOPLE)} locks the {place}."


def _list(draw: random.Random) -> Iterator[str]:
    """Names of characters in HTML, with what they stand for."""
    for number, (name, text) in enumerate(sorted(html.entities.html5.items()), 1):
        yield f"{number}. {name} is " + " and ".join(unicodedata.name(one, "a control").lower() for one in text)


def _log(draw: random.Random) -> Iterator[str]:
    """What services write down, line after line."""
    second = 0
    while True:
        second += draw.randint(0, 9)
        when = f"2026-03-{1 + second // 86400:02d} {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        level, service = draw.choice(("INFO", "INFO", "INFO", "WARN", "ERROR")), draw.choice(SERVICES)
        did = draw.choice(("request served", "retry scheduled", "connection closed", "queue drained"))
        yield f"{when} {level} [{service}] {did} id={draw.getrandbits(24):06x} in {draw.randint(2, 900)} ms"


def _json(draw: random.Random) -> Iterator[str]:
    """Orders, one object after the other."""
    for number in count(1):
        lines = [{"item": draw.choice(THINGS), "count": draw.randint(1, 9)} for _ in range(draw.randint(1, 3))]
        paid, name = draw.random() < 0.7, draw.choice(PEOPLE)
        yield json.dumps({"order": number, "customer": name, "paid": paid, "lines": lines}, indent=1)


def _instructions(draw: random.Random) -> Iterator[str]:
    """Recipes in numbered steps."""
    for number in count(1):
        first, second = draw.sample(FOODS, 2)
        yield f"Recipe {number}: {first} with {second}, for {draw.randint(2, 8)} people"
        yield f"1. Wash {draw.randint(2, 9) * 100} g of {first} and cut them into pieces of {draw.randint(1, 4)} cm."
        yield f"2. Boil {draw.randint(1, 3)} litres of water, add the {second}, and wait {draw.randint(5, 40)} minutes."
        yield f"3. If the {second} are still hard, cover the pot and wait for {draw.randint(3, 9)} minutes more."
        yield f"4. Add the {first}, stir, and serve at once with salt and pepper.\n"


KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "prose": _prose,
    "code": _code,
    "table": _table,
    "dialogue": _dialogue,
    "list": _list,
    "log": _log,
    "json": _json,
    "instructions": _instructions,
}


def text_of(kind: str, characters: int, seed: int) -> str:
    """The first characters of a text of a kind in :data:`KINDS`; another seed draws another one where it is drawn."""
    pieces, length = [], 0
    for piece in KINDS[kind](random.Random(seed)):
        pieces.append(piece)
        length += len(piece) + 1
        if length > characters:
            break
    return "\n".join(pieces)[:characters]
