"""Time every way to leave out visual tokens on the full-size LLaVA-OneVision-7B shape on a GPU; under 8 minutes.

One command, no download: the weights are random, which cost what trained ones cost (and say nothing of quality)::

    python -m mmaccel.demos.gpu.vlm_benchmark > vlm.json

32 frames of 384 x 384 pixels, 6,272 visual tokens, bfloat16. `--device cpu --small` tries the script out.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
)

from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload
from mmaccel.vlm.bench.cases import compressors
from mmaccel.vlm.bench.timing import TokenClock

from . import script

TEXT = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
}
VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}
SMALL_TEXT = {
    **TEXT,
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SMALL_VISION = {**VISION, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "image_size": 112}
FRAMES, VIDEO, NEW, QUESTION = 32, 151647, 32, 40


def build(small: bool, device: str) -> tuple[Any, dict[str, Any]]:
    """The model, and the arguments of a call of `generate`."""
    text, vision = (SMALL_TEXT, SMALL_VISION) if small else (TEXT, VISION)
    video = text["vocab_size"] - 1 if small else VIDEO
    config = LlavaOnevisionConfig(
        text_config=Qwen2Config(**text),
        vision_config=SiglipVisionConfig(**vision),
        video_token_index=video,
        image_token_index=video - 1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = script.random_model(lambda: LlavaOnevisionForConditionalGeneration(config), device)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    side = -(-(vision["image_size"] // vision["patch_size"]) // 2)
    ids = torch.randint(10, video - 1, (1, QUESTION), device=device)
    places = torch.full((1, FRAMES * side * side + 1), video, device=device)
    pixels = torch.randn(1, 4, 3, vision["image_size"], vision["image_size"], device=device, dtype=model.dtype)
    call = {
        "input_ids": torch.cat([ids[:, :8], places, ids[:, 8:]], 1),
        "pixel_values_videos": pixels.repeat_interleave(FRAMES // 4, 1),
        "max_new_tokens": NEW,
        "do_sample": False,
    }
    return model, call


class AnswerLatency(Workload):
    """Seconds to the first token of an answer, and of each token after that."""

    def __init__(self, model: Any, call: dict[str, Any]) -> None:
        self.target, self.call = model, call

    def run(self, target: Any, seed: int, fewer: int | None = None) -> tuple[float, float]:
        clock, began = TokenClock(), time.perf_counter()
        target.generate(**self.call, logits_processor=[clock])
        return clock.times[0] - began, (clock.times[-1] - clock.times[0]) / (NEW - 1)

    def judge(self, plain: Any, other: tuple[float, float]) -> dict[str, Any]:
        return dict(zip(("first", "token"), other, strict=True))


def rows(model: Any, call: dict[str, Any], share: float, rounds: int) -> list[dict[str, Any]]:
    """One row for each method, in alternation with the plain model."""
    plain = Entry(PLAIN, PLAIN)
    entries = [Entry.of(model, method) for method in compressors(share)]
    Runner(AnswerLatency(model, call), [plain, *entries], range(rounds), title="answers").run()
    base = _figures(plain)
    found = []
    for entry in entries:
        figures = _figures(entry)
        found.append(
            results.row(
                modality="vlm",
                model="LLaVA-OneVision-7B shape, random weights, 32 frames",
                **entry.identity(),
                wall_seconds=figures["first"],
                baseline_seconds=base["first"],
                speedup=base["first"] / figures["first"],
                tokens_per_second=1 / figures["token"],
                baseline_tokens_per_second=1 / base["token"],
                peak_bytes=_peak(entry),
                baseline_peak_bytes=_peak(plain),
            )
        )
    return found


def _figures(entry: Entry) -> dict[str, float]:
    found = entry.metrics.values()
    return {name: results.median(figures[name] for figures in found) for name in ("first", "token")}


def _peak(entry: Entry) -> int:
    """Bytes that a run took at its fullest, weights left out; 0 where nobody counts them."""
    return int(results.median(sample.peak_bytes or 0 for sample in entry.samples))


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the script out")
    parser.add_argument("--share", type=float, default=0.15, help="share of the visual tokens to keep")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = script.parsed(parser)
    model, call = build(arguments.small, arguments.device)
    print(json.dumps(results.result(rows(model, call, arguments.share, arguments.rounds)), indent=1))


if __name__ == "__main__":
    main()
