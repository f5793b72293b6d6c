"""A gallery to start from: cards with pictures, each of which fills the tab and lets both runs race."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from mmaccel import zoo

from .board import embedded

# A click on a card tells its number.
SCRIPT = """
element.addEventListener("click", (event) => {
  const card = event.target.closest("button");
  if (card) trigger("select", { index: Number(card.dataset.card), value: card.innerText });
});
"""
SIDE = 160  # pixels of a card's picture


@dataclass(frozen=True)
class Card:
    """One thing to start from.

    Attributes
    ----------
    text
        What is written on it.
    picture
        What is shown on it: an address that holds a picture, or of a file.
    values
        What it fills in.
    model
        The only model that it is for; empty for all that have no cards of their own.
    """

    text: str
    picture: str
    values: tuple[Any, ...]
    model: str = ""


def gallery(cards: Sequence[Card], fields: Sequence[gr.components.Component], model: gr.Dropdown | None = None) -> Any:
    """Show cards that fill `fields`; returns what is triggered when one has.

    With a field for the `model` those of the chosen one are shown, and the first of them takes the place of another
    model's card in `fields`.
    """
    chosen = "" if model is None else model.value
    shown = gr.HTML(_faces(cards, chosen), elem_classes="gallery", js_on_load=SCRIPT)

    def pick(event: gr.SelectData) -> Any:
        index: Any = event.index
        values = cards[int(index) % len(cards)].values
        return values[0] if len(fields) == 1 else list(values)

    def choose(name: Any, *filled: Any) -> list[Any]:
        fit = fitting(cards, name)
        is_of_another = any(card.values == filled for card in cards if card not in fit)
        return [_faces(cards, name), *(fit[0].values if is_of_another else (gr.skip() for _ in fields))]

    at_once: Any = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    if model is not None:
        model.change(choose, [model, *fields], [shown, *fields], **at_once)
    return shown.select(pick, None, list(fields), **at_once).then


def fitting(cards: Sequence[Card], model: Any) -> list[Card]:
    """Those of a model; where it has none of its own, those for all models."""
    return [card for card in cards if card.model == model] or [card for card in cards if not card.model]


def _faces(cards: Sequence[Card], model: Any) -> str:
    """Those of a model as HTML, each with its number among all."""
    faces = "".join(
        f'<button type="button" data-card="{cards.index(card)}"><img src="{card.picture}" alt="" loading="lazy">'
        f"<span>{html.escape(card.text)}</span></button>"
        for card in fitting(cards, model)
    )
    title = "<h2>Start from one of these: it runs twice, plainly and accelerated</h2>"
    return f'{title}<div class="cards">{faces}</div>'


def sample(model: str, left: int, top: int, side: int) -> str:
    """A picture of the sheet of samples that comes with a model, as an address; in pixels of the sheet."""
    with Image.open(zoo.path(model) / "samples.png") as sheet:
        return embedded(sheet.convert("RGB").crop((left, top, left + side, top + side)), SIDE)


def waves(samples: np.ndarray, bars: int = 40) -> str:
    """The loudness of sound over time, as the address of a drawing."""
    pieces = np.array_split(np.abs(samples), bars)
    loud = np.array([float(piece.max(initial=0)) for piece in pieces])
    heights = 6 + 84 * loud / max(float(loud.max()), 1e-6)
    drawn = "".join(
        f"<rect x='{4 * i}' y='{50 - height / 2:.0f}' width='2.5' height='{height:.0f}' rx='1'/>"
        for i, height in enumerate(heights)
    )
    box = f"xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {4 * bars} 100' fill='%23737373'"
    return f"data:image/svg+xml,<svg {box}>{drawn}</svg>"
