"""Train `tiny-janus`, the small text-to-image model that mmaccel ships.

One command makes the weights from nothing but a font; it is seeded, and goes on where it stopped::

    python -m mmaccel.demos.train_tiny_janus --output runs/tiny-janus

All on pictures drawn on the fly by :mod:`mmaccel.demos.emoji_world`: first the VQ model (pixels to 16 x 16
codes and back), then the language model over captions and codes, first of all names and then of those it ships.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from . import emoji_world as world
from .optimizer import Muon, trapezoid
from .tiny_janus import CODES, GRID, build_model, build_tokenizer, encode_captions, to_pixels

COMMITMENT = 0.25  # VQ-VAE (van den Oord et al., 2017)
CODE_DECAY = 0.98
CAPTION_DROPOUT = 0.1  # classifier-free guidance (Ho and Salimans, 2022)


def draw(
    seed: int, step: int, count: int, held_out: bool = False, things: tuple[str, ...] | None = None
) -> tuple[torch.Tensor, list[str]]:
    """A batch of pictures (uint8 `[count, H, W, 3]`) and captions, a pure function of seed and step."""
    rng = np.random.default_rng([seed, step, int(held_out)])
    pictures, captions = [], []
    while len(pictures) < count:
        scene = world.random_scene(rng, things)
        if scene.held_out == held_out:
            pictures.append(world.render(scene, rng))
            captions.append(world.caption(scene, rng))
    return torch.from_numpy(np.stack(pictures)), captions


class Checkpoint:
    """Weights and optimizer state in safetensors, so that a stopped stage goes on."""

    def __init__(self, path: Path, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        self.path, self.module, self.optimizers = path, module, optimizers

    def save(self, step: int) -> None:
        tensors = {f"model.{k}": v.contiguous() for k, v in self.module.state_dict().items()}
        for i, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    tensors[f"optimizer.{i}.{index}.{name}"] = torch.as_tensor(value).contiguous()
        temporary = self.path.with_suffix(".part")
        save_file({k: v.clone() for k, v in tensors.items()}, temporary, {"step": str(step)})
        temporary.replace(self.path)
        self.path.with_suffix(".json").write_text(json.dumps({"step": step}))

    def load(self) -> int:
        """Restore, and return the first step still to do."""
        if not self.path.is_file():
            return 0
        tensors = load_file(self.path)
        self.module.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        for i, optimizer in enumerate(self.optimizers):
            saved: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in tensors.items():
                parts = key.split(".", 3)
                if parts[0] == "optimizer" and int(parts[1]) == i:
                    saved.setdefault(int(parts[2]), {})[parts[3]] = value
            whole = optimizer.state_dict()
            optimizer.load_state_dict({**whole, "state": saved})
        return int(json.loads(self.path.with_suffix(".json").read_text())["step"])


def steps(first: int, last: int, label: str) -> Iterator[int]:
    yield from tqdm(range(first, last), initial=first, total=last, desc=label, mininterval=5, ncols=100)


# ---------------------------------------------------------------- stage 1: pixels to codes


def quantize(codes: torch.Tensor, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearest unit code by cosine. `latent [B, D, H, W]` (unit) -> straight-through latent, ids `[B*H*W]`."""
    flat = latent.permute(0, 2, 3, 1).reshape(-1, latent.shape[1])
    ids = (flat @ codes.T).argmax(-1)
    nearest = codes[ids].view(latent.shape[0], *latent.shape[2:], -1).permute(0, 3, 1, 2)
    return latent + (nearest - latent).detach(), ids


def picture_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L1 and L2 on pixels, L1 on edges and on a blurred copy: crisp outlines without a pretrained net."""
    loss = F.l1_loss(output, target) + 2 * F.mse_loss(output, target)
    for axis in (2, 3):
        loss = loss + F.l1_loss(output.diff(dim=axis), target.diff(dim=axis))
    return loss + F.l1_loss(F.avg_pool2d(output, 4), F.avg_pool2d(target, 4))


@torch.no_grad()
def initialize(vq: torch.nn.Module, seed: int) -> None:
    """Give the main path unit-gain weights, and biases that let colour through GroupNorm.

    With 64 channels the 32 groups hold two channels each, so a norm takes away the mean of a picture:
    its colour. Opposite constant biases inside every group make its variance, and so its scale, nearly
    constant, and the norm nearly linear.
    """
    generator = torch.Generator().manual_seed(seed)
    main = ("conv_in", "conv_out", "downsample.conv", "upsample.conv", "nin_shortcut", "quant_conv")
    for name, module in vq.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            fan_in = module.weight[0].numel()
            gain = 1.0 if name.endswith(main) else 0.7
            if name.endswith(("conv2", "proj_out")):
                gain = 0.2
            module.weight.normal_(0, gain * fan_in**-0.5, generator=generator)
            if name.endswith(main) and module.out_channels % 32 == 0 and "conv_out" not in name:
                size = module.out_channels // 32
                module.bias.copy_(torch.linspace(-2, 2, size).repeat(32))


def train_vq(vq: torch.nn.Module, args: argparse.Namespace) -> None:
    module = torch.nn.Module()
    module.vq = vq.to(memory_format=torch.channels_last)
    module.register_buffer("counts", torch.ones(CODES))
    module.register_buffer("sums", torch.zeros(CODES, vq.config.embed_dim))
    weights = [p for n, p in vq.named_parameters() if not n.startswith("quantize")]
    optimizers = [
        Muon([p for p in weights if p.ndim == 4], lr=0.006, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW([p for p in weights if p.ndim != 4], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    checkpoint = Checkpoint(args.output / "vq.safetensors", module, optimizers)
    first, codes = checkpoint.load(), vq.quantize.embedding.weight.data
    if first == 0:
        initialize(vq, args.seed)
    warm = args.vq_steps // 5
    for step in steps(first, args.vq_steps, "vq"):
        pixels = to_pixels(draw(args.seed, step, args.vq_batch)[0])
        for optimizer in optimizers:
            trapezoid(optimizer, step, args.vq_steps, warmup=30, decay=0.5)
        latent = F.normalize(vq.quant_conv(vq.encoder(pixels)), dim=1)
        if step < warm:  # an autoencoder first: quantising an untrained encoder collapses it
            noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(step))
            quantized, commitment = F.normalize(latent + 0.05 * noise, dim=1), torch.zeros(())
        else:
            if step == warm:
                codes.copy_(_initial_codes(vq, args))
                module.sums.copy_(codes)
            quantized, ids = quantize(codes, latent)
            commitment = (1 - (latent * quantized.detach()).sum(1)).mean()
            _update_codes(codes, module, latent.detach(), ids)
        loss = picture_loss(vq.decoder(vq.post_quant_conv(quantized)), pixels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss + COMMITMENT * commitment).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if warm < step < args.vq_steps * 0.7 and step % 50 == 49:
            _restart(codes, module, latent.detach(), args.seed + step)
        if step % 50 == 49:
            used = int((module.counts > 0.2).sum())
            tqdm.write(f"vq {step + 1} loss {loss.item():.4f} commitment {commitment.item():.4f} codes used {used}")
        if step % 250 == 249 or step + 1 == args.vq_steps:
            checkpoint.save(step + 1)


@torch.no_grad()
def _initial_codes(vq: torch.nn.Module, args: argparse.Namespace, iterations: int = 10) -> torch.Tensor:
    """Spherical k-means over the latents of 64 pictures."""
    pixels = to_pixels(draw(args.seed, args.vq_steps, 64)[0])
    latent = F.normalize(vq.quant_conv(vq.encoder(pixels)), dim=1).permute(0, 2, 3, 1).flatten(0, 2)
    generator = torch.Generator().manual_seed(args.seed)
    codes = latent[torch.randperm(latent.shape[0], generator=generator)[:CODES]].clone()
    for _ in range(iterations):
        sums = torch.zeros_like(codes).index_add_(0, (latent @ codes.T).argmax(-1), latent)
        codes = F.normalize(sums, dim=-1).where(sums.norm(dim=-1, keepdim=True) > 1e-4, codes)
    return codes


@torch.no_grad()
def _update_codes(codes: torch.Tensor, module: torch.nn.Module, latent: torch.Tensor, ids: torch.Tensor) -> None:
    flat = latent.permute(0, 2, 3, 1).reshape(-1, latent.shape[1])
    module.counts.mul_(CODE_DECAY).add_(torch.bincount(ids, minlength=CODES), alpha=1 - CODE_DECAY)
    module.sums.mul_(CODE_DECAY).index_add_(0, ids, flat, alpha=1 - CODE_DECAY)
    codes.copy_(F.normalize(module.sums, dim=-1).where(module.sums.norm(dim=-1, keepdim=True) > 1e-4, codes))


@torch.no_grad()
def _restart(codes: torch.Tensor, module: torch.nn.Module, latent: torch.Tensor, seed: int) -> None:
    """Codes that are hardly used move to where the encoder is."""
    dead = module.counts < 0.1
    flat = latent.permute(0, 2, 3, 1).reshape(-1, latent.shape[1])
    generator = torch.Generator().manual_seed(seed)
    pick = torch.randperm(flat.shape[0], generator=generator)[: int(dead.sum())]
    codes[dead] = module.sums[dead] = flat[pick]
    module.counts[dead] = 1.0


# ---------------------------------------------------------------- stage 2: captions to codes


def language_model_loss(model, tokenizer, pictures, captions, drop, reduction="mean") -> torch.Tensor:
    """Cross entropy of the image tokens in nats, `[B, GRID * GRID]` with `reduction="none"`."""
    with torch.no_grad():
        codes = model.model.vqmodel.encode(to_pixels(pictures)).image_tokens.view(len(captions), -1)
    prompts = encode_captions(tokenizer, captions, drop)
    longest = max(map(len, prompts))
    picture = model.prepare_embeddings_for_image_generation(codes)
    # Captions come first and padding last: under causal attention no mask is needed.
    text = model.get_input_embeddings()(
        torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in prompts])
    )
    rows = [torch.cat([text[i, : len(row)], picture[i, :-1], text[i, len(row) :]]) for i, row in enumerate(prompts)]
    hidden = model.model.language_model(inputs_embeds=torch.stack(rows), use_cache=False).last_hidden_state
    starts = torch.tensor([len(row) - 1 for row in prompts])
    index = starts[:, None] + torch.arange(GRID * GRID)
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
    optimizers = [
        Muon(inside, lr=0.02 * pace, momentum=0.95, weight_decay=0.01, dtype=dtype),
        torch.optim.AdamW(outside, lr=3e-3 * pace, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    module = torch.nn.ParameterList(inside + outside)
    checkpoint = Checkpoint(args.output / f"{stage}.safetensors", module, optimizers)
    first = checkpoint.load()
    began, running = time.time(), None
    for step in steps(first, last, stage):
        pictures, captions = draw(args.seed + last, step, batch, things=things)
        drop = (np.random.default_rng([args.seed, step]).random(batch) < CAPTION_DROPOUT).tolist()
        for optimizer in optimizers:
            trapezoid(optimizer, step, last, warmup=100, decay=0.6)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = language_model_loss(model, tokenizer, pictures, captions, drop)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(outside, 1.0)
        for optimizer in optimizers:
            optimizer.step()
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
    while len(pictures) < count:
        scene = world.random_scene(rng, world.FEATURED)
        if scene.held_out:
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
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    real = reference(model)
    tokens = {"tokens": real["tokens"].to(torch.int16)}
    save_file(tokens, folder / "reference.safetensors", {"captions": json.dumps(real["captions"])})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for checkpoints and the model")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--vq-batch", type=int, default=6, help="pictures a step of the VQ model")
    parser.add_argument("--vq-steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=12, help="pictures a step of the language model")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the language model")
    parser.add_argument("--featured-steps", type=int, default=4000, help="further steps on the shipped names")
    parser.add_argument("--featured-batch", type=int, default=24, help="pictures a step there, in bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
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
        "seed": args.seed,
        "batch": args.batch,
        "vq_steps": args.vq_steps,
        "steps": args.steps,
        "featured_steps": args.featured_steps,
        "featured_batch": args.featured_batch,
        "names": list(world.FEATURED),
        "sizes": list(world.SIZES),
        "backgrounds": list(world.BACKGROUNDS),
        "places": list(world.PLACES),
    }
    save(model, tokenizer, args.output / "model", facts)
    print(json.dumps({k: v for k, v in facts.items() if not isinstance(v, list)}, indent=2))


if __name__ == "__main__":
    main()
