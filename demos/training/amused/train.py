"""Train `tiny-amused`, the small masked image model that mmaccel ships; it draws what `tiny-janus` draws.

It needs nothing but a font and the weights of `tiny-janus`, whose codes it learns, and goes on where it stopped,
until its minutes are over::

    python -m mmaccel.demos.training.amused.train --output runs/tiny-amused --minutes 50

Pictures are drawn and encoded once. Of each, a share of codes is masked, as the cosine schedule of MaskGIT (Chang et
al., 2022) has it, and transformer and text encoder learn together what stands there.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AmusedPipeline, VQModel
from diffusers.models.attention_processor import AttnProcessor

from mmaccel import zoo
from mmaccel.zoo.worlds import emoji_world as world

from ..checkpoint import write_pipeline
from ..janus.data import said_of
from ..optimizer import optimizers_of
from ..recipe import Stage, begin, command_line, given
from . import shape
from .data import Pool, pool
from .vq import agreement, fitted

CAPTION_DROPOUT = 0.1  # classifier-free guidance (Ho and Salimans, 2022)
INSIDE = (".transformer_layers.", "_block.", ".encoder.layers.")


class Trained(torch.nn.Module):
    """The two parts that train, as the pipeline calls them."""

    def __init__(self, tokenizer, codes: torch.Tensor) -> None:
        super().__init__()
        self.transformer = shape.build_transformer(codes)
        self.text_encoder = shape.build_text_encoder(tokenizer)
        self.transformer.set_attn_processor(AttnProcessor())  # torch's own has a slow backward pass on processors
        self.text_encoder.set_attn_implementation("eager")

    def forward(self, tokens: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Logits `[B, V, H, W]` of masked codes `[B, H, W]` under captions `[B, TEXT_LENGTH]`."""
        text = self.text_encoder(words, output_hidden_states=True)
        return self.transformer(
            tokens,
            encoder_hidden_states=text.hidden_states[-2],
            pooled_text_emb=text.text_embeds,
            micro_conds=shape.micro_conditions(len(tokens)),
        )


def masked_loss(module: Trained, tokenizer, codes: torch.Tensor, captions: list[str], seed: int) -> torch.Tensor:
    """Cross entropy of the masked codes in nats, each picture with a share of masks of its own."""
    generator = torch.Generator().manual_seed(seed)
    count = len(codes)
    drop = torch.rand(count, generator=generator) < CAPTION_DROPOUT
    told = ["" if dropped else caption for dropped, caption in zip(drop.tolist(), captions, strict=True)]
    spread = (torch.randperm(count, generator=generator) + torch.rand(count, generator=generator)) / count
    share = torch.cos(spread * math.pi / 2)[:, None, None]
    masked = torch.rand(codes.shape, generator=generator) < share.clamp(min=1 / codes[0].numel())
    logits = module(codes.masked_fill(masked, shape.MASK), words_of(tokenizer, told))
    return F.cross_entropy(logits.permute(0, 2, 3, 1)[masked].float(), codes[masked])


def words_of(tokenizer, captions: list[str]) -> torch.Tensor:
    """Token ids `[B, TEXT_LENGTH]`, as the pipeline pads them."""
    return tokenizer(
        captions, return_tensors="pt", padding="max_length", truncation=True, max_length=shape.TEXT_LENGTH
    ).input_ids


def train(pictures: Pool, tokenizer, codes: torch.Tensor, args: argparse.Namespace) -> Stage:
    """Transformer and text encoder together."""
    module = Trained(tokenizer, codes)
    stage = Stage("amused", module, optimizers_of(module, blocks=INSIDE, weight_decay=0.01), args.minutes, args.output)
    for _ in stage.shares(warmup=100, decay=0.5):
        codes, captions = pictures.draw([args.seed, stage.step], args.batch)
        with torch.autocast("cpu", torch.bfloat16):
            loss = masked_loss(module, tokenizer, codes, captions, stage.step)
        stage.took(loss)
        if stage.due():
            save(stage.average.module, tokenizer, args.output / "model", facts(args, stage.step))
    return stage


@torch.no_grad()
def held_out_loss(module: Trained, tokenizer, pictures: Pool, rounds: int = 20, batch: int = 32) -> float:
    """Nats per masked code over scenes that were never trained on."""
    losses = []
    for number in range(rounds):
        codes, captions = pictures.draw([number], batch)
        losses.append(masked_loss(module, tokenizer, codes, captions, number))
    return float(torch.stack(losses).mean())


def save(module: Trained, tokenizer, folder: Path, facts: dict[str, object]) -> None:
    """Write what `mmaccel.zoo` ships beside the VQ model."""
    scheduler, vq = shape.build_scheduler(), VQModel.from_pretrained(folder / "vqvae")
    pipeline = AmusedPipeline(vq, tokenizer, module.text_encoder, module.transformer, scheduler)
    write_pipeline(pipeline, ("text_encoder", "transformer"), folder, facts)


def facts(args: argparse.Namespace, step: int, **measured: float) -> dict[str, object]:
    """What `training.json` tells."""
    return {
        **given(args, "minutes", "pictures", "batch"),
        "steps": step,
        **measured,
        **said_of(world.FEATURED),
    }


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=50, help="time for transformer and text encoder")
    parser.add_argument("--pictures", type=int, default=12_000, help="pictures to train on")
    parser.add_argument("--batch", type=int, default=32, help="pictures a step")
    parser.add_argument("--vq-steps", type=int, default=400, help="steps of the encoder of pictures")
    parser.add_argument("--vq-batch", type=int, default=4, help="pictures a step there")
    args = parser.parse_args(argv)
    begin(args)
    tokenizer = shape.build_tokenizer()
    pictures = pool(args.output / "pictures.safetensors", args.pictures, args.seed)
    own = zoo.load("tiny-janus")[0].model.vqmodel
    folder = args.output / "model"
    vq = fitted(own, folder / "vqvae", args)
    stage = train(pictures, tokenizer, own.quantize.embedding.weight, args)
    module = stage.finish()
    unseen = pool(args.output / "held_out.safetensors", 500, args.seed, held_out=True)
    measured = {
        "held_out_nats_per_masked_code": round(held_out_loss(module, tokenizer, unseen), 4),
        "same_codes": round(agreement(vq, own, args.seed), 3),
    }
    save(module, tokenizer, folder, facts(args, stage.step, **measured))
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
