"""How often `tiny-onevision` answers right: lone questions about whole clips, by the model's own `generate`."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from pathlib import Path

import torch

from mmaccel.zoo import tiny_onevision as zoo


@torch.no_grad()
def accuracy(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Share of right answers to questions about scenes never trained on: of all, and of each kind."""
    model, processor = zoo.load(folder)
    right: dict[str, list[bool]] = defaultdict(list)
    for _, group in groupby(zoo.questions(folder, count, seed), key=lambda row: id(row.frames)):
        rows = list(group)
        with torch.autocast("cpu", torch.bfloat16):
            answers = answer(model, processor, rows)
        for row, told in zip(rows, answers, strict=True):
            right["all"].append(told == row.answer)
            right[row.kind].append(told == row.answer)
    return {kind: sum(values) / len(values) for kind, values in right.items()}


def answer(model, processor, rows: list[zoo.VideoQuestion]) -> list[str]:
    """The model's answers to questions about one clip, each asked alone; the clip is seen once."""
    videos = [row.frames for row in rows]
    inputs = processor(videos=videos, text=[row.question for row in rows], return_tensors="pt")
    seen = model.get_video_features(inputs.pop("pixel_values_videos")[:1])
    seen.pooler_output = seen.pooler_output.expand(len(rows), -1, -1)
    tokens = model.generate(**inputs, mm_encoder_outputs={"video": seen}, do_sample=False, max_new_tokens=10)
    return processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
