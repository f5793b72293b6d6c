"""The first stage of `tiny-janus`: its VQ model, from pixels to codes and back."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from tqdm import tqdm

from ..checkpoint import Checkpoint, steps, stoppable
from ..optimizer import Muon, trapezoid
from ..recipe import step_with, to_pixels
from .data import draw
from .shape import CODES

COMMITMENT = 0.25  # VQ-VAE (van den Oord et al., 2017)
CODE_DECAY = 0.98


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
    for step in stoppable(steps(first, args.vq_steps, "vq"), lambda done: checkpoint.save(done + 1)):
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
        step_with(optimizers, loss + COMMITMENT * commitment, weights)
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
