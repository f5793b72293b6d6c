"""How many held-out pictures `tiny-canvas` lists without a mistake."""

from __future__ import annotations

from pathlib import Path

import torch

from mmaccel import zoo
from mmaccel.canvas.arguments import ONE_BY_ONE
from mmaccel.zoo import tiny_canvas
from mmaccel.zoo.tiny_onevision import sprites_of
from mmaccel.zoo.worlds import listed_world

from .shape import START

BATCH = 20


@torch.no_grad()
def exact(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Shares of whole lists that are right: one token a step in blocks, and word by word."""
    pipe, processor = tiny_canvas.load(folder)
    sprites = sprites_of(zoo.path(START))
    right = {"blocks": 0, "words": 0}
    for first in range(0, count, BATCH):
        listings = [
            listed_world.draw_listing([seed, i], True, sprites) for i in range(first, min(first + BATCH, count))
        ]
        videos = [listing.picture[None] for listing in listings]
        inputs = processor(videos=videos, text=[listed_world.QUESTION] * len(videos))
        with torch.autocast("cpu", torch.bfloat16):
            words = pipe.model.model.generate(**inputs, max_new_tokens=128)[:, inputs["input_ids"].shape[1] :]
            written = {"words": processor.batch_decode(words, skip_special_tokens=True)}
            written["blocks"] = pipe(**inputs, threshold=ONE_BY_ONE).texts
        for kind, texts in written.items():
            right[kind] += sum(text == listing.text for text, listing in zip(texts, listings, strict=True))
    return {kind: number / count for kind, number in right.items()}
