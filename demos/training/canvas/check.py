"""How many held-out pictures `tiny-canvas` lists without a mistake."""

from __future__ import annotations

from pathlib import Path

import torch

from mmaccel import zoo
from mmaccel.zoo.tiny_onevision import load, sprites_of
from mmaccel.zoo.worlds import listed_world

from .shape import BLOCK, START

BATCH = 20


@torch.no_grad()
def exact(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Shares of whole lists that are right: one token a step in blocks, and word by word."""
    model, processor = load(folder)
    sprites = sprites_of(zoo.path(START))
    right = {"blocks": 0, "words": 0}
    for first in range(0, count, BATCH):
        listings = [
            listed_world.draw_listing([seed, i], True, sprites) for i in range(first, min(first + BATCH, count))
        ]
        videos = [listing.picture[None] for listing in listings]
        inputs = processor(videos=videos, text=[listed_world.QUESTION] * len(videos))
        length = inputs["input_ids"].shape[1]
        with torch.autocast("cpu", torch.bfloat16):
            written = {"words": model.generate(**inputs, max_new_tokens=128)[:, length:]}
            written["blocks"] = one_by_one(model, inputs, processor.tokenizer, BLOCK)[:, length:]
        for kind, tokens in written.items():
            texts = [processor.decode(_until_end(row, processor.tokenizer), skip_special_tokens=True) for row in tokens]
            right[kind] += sum(text == listing.text for text, listing in zip(texts, listings, strict=True))
    return {kind: number / count for kind, number in right.items()}


def one_by_one(model, inputs, tokenizer, block: int, most: int = 128) -> torch.Tensor:
    """The surest masked token of the block, again and again; without any cache."""
    ids = inputs["input_ids"]
    start, first = ids.shape[1], ids.shape[1] - ids.shape[1] % block
    while True:
        end = first + block
        ids = torch.cat([ids, ids.new_full((len(ids), end - ids.shape[1]), tokenizer.mask_token_id)], 1)
        mask = torch.ones(end, end, dtype=torch.bool).tril()
        mask[first:, first:] = True
        while (masked := ids == tokenizer.mask_token_id).any():
            logits = model(
                input_ids=ids,
                pixel_values_videos=inputs["pixel_values_videos"],
                attention_mask=mask[None, None],
                position_ids=torch.arange(end)[None],
                use_cache=False,
            ).logits
            chances, tokens = logits.float().softmax(-1).max(-1)
            surest = torch.where(masked, chances, -1.0).argmax(1, keepdim=True)
            filled = ids.scatter(1, surest, tokens.gather(1, surest))
            ids = torch.where(masked, filled, ids)
        first = end
        if end - start >= most or (ids[:, start:] == tokenizer.eos_token_id).any(1).all():
            return ids


def _until_end(row: torch.Tensor, tokenizer) -> torch.Tensor:
    ends = (row == tokenizer.eos_token_id).nonzero()
    return row[: int(ends[0])] if len(ends) else row
