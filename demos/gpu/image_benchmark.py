"""Measure the image methods on a GPU, and the verify cost of the full-size Janus-Pro shapes; under 8 minutes.

One command, no download: the full-size models have random weights, which cost what trained ones cost::

    python -m mmaccel.demos.gpu.image_benchmark > image.json

The wall gain on Janus-Pro follows from two measured things and a published one: the cost of a pass of `n`
tokens against one token (measured here), and tokens per pass (published for SCD-GS on Janus-Pro-7B: 576
tokens in 154 passes at window 32, and 318 passes for plain SJD).
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from transformers import JanusConfig, JanusForConditionalGeneration, JanusVisionConfig, JanusVQVAEConfig, LlamaConfig

from mmaccel.adapter import find_adapter
from mmaccel.comparison import results
from mmaccel.decoding import VerifyCost
from mmaccel.image import SpeculativeJacobi, ZipAR, generation
from mmaccel.image.bench import benchmark, cases
from mmaccel.image.decoding.grid_decoder import GridDecoder
from mmaccel.machine import synchronize

from . import script

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
# hidden, layers, heads, intermediate, as in the published configurations
SHAPES = {"janus-pro-1b": (2048, 24, 16, 5632), "janus-pro-7b": (4096, 30, 32, 11008)}
PUBLISHED_PASSES = {"SJD": 318, "SCD-GS window 32": 154}  # of 576, Janus-Pro-7B


def full_size(hidden: int, layers: int, heads: int, intermediate: int, device: str) -> Any:
    """A Janus-Pro shape with random weights."""
    text = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=intermediate,
        vocab_size=102400,
        max_position_embeddings=16384,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = JanusConfig(
        text_config=text,
        vision_config=JanusVisionConfig(projection_dim=hidden),
        vq_config=JanusVQVAEConfig(projection_dim=hidden, image_token_embed_dim=hidden),
    )
    model = script.random_model(lambda: JanusForConditionalGeneration(config), device)
    model.generation_config.pad_token_id, model.generation_config.bos_token_id = 0, 1
    model.generation_config.generation_kwargs = {"boi_token_id": 3}
    return model


def measure_cost(decoder: GridDecoder, repeats: int = 3) -> VerifyCost:
    """Time forwards half-way through the picture, as the average pass is: a warm-up each, then the median."""
    decoder.prefill()
    middle, times = decoder.length // 2, []
    for width in BUCKETS:
        index = torch.arange(middle, middle + width, device=decoder.device).expand(decoder.batch, -1)
        runs = []
        for _ in range(repeats + 1):
            synchronize()
            began = time.perf_counter()
            decoder.forward(torch.zeros_like(index), index, middle + width)
            synchronize()
            runs.append(time.perf_counter() - began)
        times.append(results.median(runs[1:]))
    return VerifyCost(BUCKETS, tuple(times))


@torch.no_grad()
def verify_cost(name: str, shape: tuple[int, int, int, int], batch: int, device: str) -> dict[str, Any]:
    """Seconds of a guided pass of 1 to 64 tokens, and the wall gain that follows for published acceptance."""
    model = full_size(*shape, device=device)
    ids = torch.full((batch, 32), 5, device=device)
    ids[:, 0], ids[:, -1] = 1, 3
    adapter: Any = find_adapter(model)
    task = adapter.begin({"input_ids": ids, "generation_mode": "image", "guidance_scale": 5.0})
    cost = measure_cost(GridDecoder(task, torch.Generator(device).manual_seed(0), margin=max(BUCKETS)))
    width = {"SJD": 16, "SCD-GS window 32": 32}
    gains = {
        label: 576 / passes * cost.seconds(1) / cost.seconds(width[label]) for label, passes in PUBLISHED_PASSES.items()
    }
    return results.row(
        modality="image",
        model=name,
        method="image.SpeculativeJacobi",
        settings=SpeculativeJacobi().settings(),
        exact=True,
        batch=batch,
        verify_cost=cost.to_dict(),
        estimated_speedup_at_published_acceptance=gains,
    )


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument(
        "--batches", nargs="*", type=int, default=(1, 4), metavar="N", help="of tiny-janus; default 1 4"
    )
    args = script.parsed(parser, argv, "--device cpu --shapes")

    def rows() -> Any:
        painter = generation.load(cases.MODEL, args.device)
        methods = (
            SpeculativeJacobi(window=1),
            SpeculativeJacobi(),
            *(SpeculativeJacobi(window=w) for w in cases.WINDOWS),
            ZipAR(window=4),
            ZipAR(window=4, verify=True),
        )
        for batch in args.batches:
            for _, row in benchmark.measure(painter, cases.ImageCase(batch, cases.GUIDED, 3, methods)):
                yield row
        for name in args.shapes:
            for batch in (1, 4):
                yield verify_cost(name, SHAPES[name], batch, args.device)
                if args.device == "cuda":
                    torch.cuda.empty_cache()

    print(json.dumps(results.result(rows()), indent=1))


if __name__ == "__main__":
    main()
