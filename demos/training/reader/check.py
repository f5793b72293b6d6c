"""How many held-out pages `tiny-reader` reads without a mistake, by the model's own `generate`."""

from __future__ import annotations

from pathlib import Path

import torch

from mmaccel.zoo import tiny_reader as zoo

BATCH = 20


@torch.no_grad()
def exact(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Shares of right pages, right lines and right regions (each read alone from its crop)."""
    model, processor = zoo.load(folder)
    pages = list(zoo.pages(folder, count, seed))
    told = _read(model, processor, [page.picture for page in pages])
    wanted = [page.text for page in pages]
    lines = [line in text.split("\n") for text, page in zip(told, wanted, strict=True) for line in page.split("\n")]
    regions = [(page.picture, *region) for page in pages for region in page.regions]
    crops = [picture[top:bottom, left:right] for picture, (left, top, right, bottom), _ in regions]
    alone = _read(model, processor, crops)
    return {
        "pages": sum(map(str.__eq__, told, wanted)) / count,
        "lines": sum(lines) / len(lines),
        "regions": sum(text == region[2] for text, region in zip(alone, regions, strict=True)) / len(regions),
    }


def _read(model, processor, pictures: list) -> list[str]:
    """What the model says of pictures, those of a like size together."""
    order = sorted(range(len(pictures)), key=lambda i: pictures[i].shape[:2])
    told = [""] * len(pictures)
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        inputs = processor(images=[pictures[i] for i in chosen])
        with torch.autocast("cpu", torch.bfloat16):
            tokens = model.generate(**inputs, do_sample=False, max_new_tokens=480)
        texts = processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for i, text in zip(chosen, texts, strict=True):
            told[i] = text
    return told
