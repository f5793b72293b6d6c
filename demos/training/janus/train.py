"""Train `tiny-janus`, the small text-to-image model that mmaccel ships.

One command makes the weights from nothing but a font; it is seeded, and goes on where it stopped::

    python -m mmaccel.demos.training.janus.train --output runs/tiny-janus

All on pictures drawn on the fly by :mod:`mmaccel.zoo.worlds.emoji_world`: first the VQ model (pixels to 16 x 16
codes and back), then the language model over captions and codes, first of all names and then of those it ships.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tqdm import tqdm

from mmaccel.zoo.worlds import emoji_world as world

from ..checkpoint import Checkpoint, steps, stoppable, write_facts
from ..optimizer import muon_and_adam, trapezoid
from ..recipe import begin, command_line, given, step_with, to_pixels
from .data import draw, said_of
from .shape import GRID, build_model, build_tokenizer, encode_captions
from .vq import train_vq

RATE = 3e-3  # of what is outside the blocks
CAPTION_DROPOUT = 0.1  # classifier-free guidance (Ho and Salimans, 2022)


def language_model_loss(model, tokenizer, pictures, captions, drop, reduction="mean") -> torch.Tensor:
    """Cross entropy of the image tokens in nats, `[B, GRID * GRID]` with `reduction="none"`."""
    rows = [torch.tensor(row) for row in encode_captions(tokenizer, captions, drop)]
    lengths = torch.tensor([len(row) for row in rows])
    text = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    return encoded_loss(model, to_pixels(pictures), text, lengths, reduction)


def encoded_loss(model, pixels, text, lengths, reduction="mean") -> torch.Tensor:
    """The same of pixels `[B, 3, H, W]`, and token ids of captions `[B, L]`, padded to the right of their `lengths`."""
    with torch.no_grad():
        codes = model.model.vqmodel.encode(pixels).image_tokens.view(len(pixels), -1)
    picture = model.prepare_embeddings_for_image_generation(codes)
    both = torch.cat([model.get_input_embeddings()(text), picture], 1)
    # Each picture follows its caption at once, and what is left comes last: under causal attention no mask is needed.
    places = torch.arange(both.shape[1] - 1, device=both.device).expand(len(both), -1)
    source = torch.where(places < lengths[:, None], places, places - lengths[:, None] + text.shape[1])
    inputs = both.gather(1, source.clamp_max(both.shape[1] - 1)[..., None].expand(-1, -1, both.shape[2]))
    hidden = model.model.language_model(inputs_embeds=inputs, use_cache=False).last_hidden_state
    index = lengths[:, None] - 1 + torch.arange(GRID * GRID, device=both.device)
    logits = model.model.generation_head(hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1])))
    return F.cross_entropy(logits.transpose(1, 2), codes, reduction=reduction)


def trained_parameters(model) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Matrices inside the blocks (for Muon), and all else that image generation uses (for AdamW)."""
    inside, outside = [], []
    for name, parameter in model.model.named_parameters():
        if name.startswith(("language_model", "generation")):
            (inside if ".layers." in name and parameter.ndim == 2 else outside).append(parameter)
    return inside, outside


def train_language_model(
    model,
    tokenizer,
    args: argparse.Namespace,
    stage: str,
    last: int,
    batch: int,
    pace: float,
    things: tuple[str, ...] | None,
    dtype: torch.dtype,
) -> None:
    """One stage of `last` steps at `pace` times the full learning rates, over all names or over `things`.

    With `dtype` bfloat16 the matrix products run in it, which is twice as fast on a CPU that has AVX512-BF16 or AMX.
    """
    inside, outside = trained_parameters(model)
    optimizers = muon_and_adam(inside, outside, pace=pace, lr=RATE, dtype=dtype)
    module = torch.nn.ParameterList(inside + outside)
    checkpoint = Checkpoint(args.output / f"{stage}.safetensors", module, optimizers)
    first = checkpoint.load()
    began, running = time.time(), None
    for step in stoppable(steps(first, last, stage), lambda done: checkpoint.save(done + 1)):
        pictures, captions = draw(args.seed + last, step, batch, things=things)
        drop = (np.random.default_rng([args.seed, step]).random(batch) < CAPTION_DROPOUT).tolist()
        for optimizer in optimizers:
            trapezoid(optimizer, step, last, warmup=100, decay=0.6)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = language_model_loss(model, tokenizer, pictures, captions, drop)
        step_with(optimizers, loss)
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if step % 50 == 49:
            tqdm.write(f"{stage} {step + 1} loss {running:.4f} minutes {(time.time() - began) / 60:.1f}")
        if step % 250 == 249 or step + 1 == last:
            checkpoint.save(step + 1)


@torch.no_grad()
def held_out_loss(model, tokenizer, count: int = 192, batch: int = 32) -> float:
    """Nats per image token over scenes that were never trained on."""
    losses = []
    for step in range(math.ceil(count / batch)):
        pictures, captions = draw(0, step, batch, held_out=True, things=world.FEATURED)
        losses.append(language_model_loss(model, tokenizer, pictures, captions, [False] * batch).item())
    return float(np.mean(losses))


@torch.no_grad()
def reference(model, count: int = 400) -> dict[str, object]:
    """Captions that tell everything, and the codes of their pictures, from scenes never trained on."""
    rng = np.random.default_rng(0)
    pictures, captions = [], []
    for _ in range(count):
        scene = world.draw_scene(rng, True, world.FEATURED)
        pictures.append(world.render(scene, rng))
        captions.append(world.caption(scene))
    pixels = to_pixels(torch.from_numpy(np.stack(pictures)))
    tokens = [model.model.vqmodel.encode(part).image_tokens.view(len(part), -1) for part in pixels.split(50)]
    return {"captions": captions, "tokens": torch.cat(tokens)}


def save(model, tokenizer, folder: Path, facts: dict[str, object]) -> None:
    """Write what `mmaccel.zoo` ships: float16 weights, configuration, tokenizer, facts and reference pictures.

    What is measured afterwards is measured on the weights as they are shipped, rounded to float16.
    """
    model.half().save_pretrained(folder)
    model.float()
    tokenizer.save_pretrained(folder)
    facts["held_out_nats_per_token"] = round(held_out_loss(model, tokenizer), 4)
    write_facts(facts, folder)
    real = reference(model)
    tokens = {"tokens": real["tokens"].to(torch.int16)}
    save_file(tokens, folder / "reference.safetensors", {"captions": json.dumps(real["captions"])})


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--vq-batch", type=int, default=6, help="pictures a step of the VQ model")
    parser.add_argument("--vq-steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=12, help="pictures a step of the language model")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the language model")
    parser.add_argument("--featured-steps", type=int, default=4000, help="further steps on the shipped names")
    parser.add_argument("--featured-batch", type=int, default=24, help="pictures a step there, in bfloat16")
    args = parser.parse_args(argv)
    begin(args)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    train_vq(model.model.vqmodel, args)
    with torch.no_grad():
        model.model.generation_embeddings.weight.copy_(model.model.vqmodel.quantize.embedding.weight)
    stages = (
        ("lm", args.steps, args.batch, 1.0, None, torch.float32),
        ("featured", args.featured_steps, args.featured_batch, 0.5, world.FEATURED, torch.bfloat16),
    )
    for stage in stages:
        train_language_model(model, tokenizer, args, *stage)
    facts = {
        **given(args, "batch", "vq_steps", "steps", "featured_steps", "featured_batch"),
        **said_of(world.FEATURED),
    }
    save(model, tokenizer, args.output / "model", facts)
    print(json.dumps({k: v for k, v in facts.items() if not isinstance(v, list)}, indent=2))


if __name__ == "__main__":
    main()
