"""A tiny untrained encoder of many views for the contract tests: the parts of VGGT under the names that it gives them.

VGGT is in no package index, so that this stands for it: DINO blocks that attend within a view and over all views by
turns, rotary positions of two dimensions, a camera and register tokens, and a depth for each patch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from mmaccel.testing.example import Example
from mmaccel.testing.untrained import untrained

PATCH, REGISTERS = 4, 2


def examples() -> list[Example]:
    """One model, called with views of 24 x 16 pixels."""
    return [
        Example(
            "multi_view",
            vggt,
            module=lambda model: model.aggregator.global_blocks[-1],
            call="__call__",
            takes_generator=False,
            variants=({"views": 3}, {"views": 5, "height": 20}),
            interrupt_after=0,
        )
    ]


def vggt(seed: int = 0) -> tuple[Any, Any]:
    """A `VGGT`, and ``arguments(batch, views, height, width)`` of a call."""

    def arguments(batch: int = 1, views: int = 4, height: int = 24, width: int = 16) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        scene = torch.rand(batch, 1, 3, height, width, generator=generator)
        own = torch.rand(batch, views, 3, height, width, generator=generator)
        return {"images": 0.7 * scene + 0.3 * own}

    return untrained(VGGT, seed, 2.0), arguments


class VGGT(nn.Module):
    """Depths `[B, S, rows, columns]` of pictures `[B, S, 3, H, W]`, by `depth` pairs of blocks."""

    def __init__(self, width: int = 32, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.aggregator = Aggregator(width, heads, depth)
        self.depth_head = nn.Linear(2 * width, 1)

    @torch.no_grad()
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens, first = self.aggregator(images)
        rows, columns = (side // PATCH for side in images.shape[-2:])
        return self.depth_head(tokens[:, :, first:]).squeeze(-1).unflatten(2, (rows, columns))


class Aggregator(nn.Module):
    """Blocks of one view and of all views by turns."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patch_size, self.patch_start_idx = PATCH, 1 + REGISTERS
        self.patch_embed = nn.Conv2d(3, width, PATCH, PATCH)
        self.camera_token = nn.Parameter(torch.randn(1, 2, 1, width))
        self.register_token = nn.Parameter(torch.randn(1, 2, REGISTERS, width))
        self.frame_blocks = nn.ModuleList(ViewBlock(width, heads) for _ in range(depth))
        self.global_blocks = nn.ModuleList(ViewBlock(width, heads) for _ in range(depth))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, int]:
        batch, views = images.shape[:2]
        patches = self.patch_embed(images.flatten(0, 1)).flatten(2).transpose(1, 2).unflatten(0, (batch, views))
        special = torch.cat([self.camera_token, self.register_token], 2)  # of the first view, and of all others
        special = torch.cat([special[:, :1], special[:, 1:].expand(-1, views - 1, -1, -1)], 1)
        tokens = torch.cat([special.expand(batch, -1, -1, -1), patches], 2)
        places = torch.cartesian_prod(*(torch.arange(1, 1 + side // PATCH) for side in images.shape[-2:]))
        places = torch.cat([places.new_zeros(self.patch_start_idx, 2), places]).to(images.device)
        pos = places.expand(batch, views, -1, -1)
        for own, joint in zip(self.frame_blocks, self.global_blocks, strict=True):
            within = own(tokens.flatten(0, 1), pos=pos.flatten(0, 1)).view(tokens.shape)
            tokens = joint(within.flatten(1, 2), pos=pos.flatten(1, 2)).view(tokens.shape)
        return torch.cat([within, tokens], -1), self.patch_start_idx


class ViewBlock(nn.Module):
    """Attention and an MLP, as in DINOv2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, pos: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), pos=pos)
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    """Attention with rotary positions of rows and columns `[B, L, 2]`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, pos: torch.Tensor | None = None) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if pos is not None:
            query, key = rotated(query, pos), rotated(key, pos)
        return self.proj(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


def rotated(x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    """Rotate the first half of each head `[B, H, L, D]` by the row of its place, the second by the column."""
    quarter = x.shape[-1] // 4
    angles = pos[..., None] / 100 ** (torch.arange(quarter, device=x.device) / quarter)  # [B, L, 2, D / 4]
    cosine, sine = (part[:, None].to(x.dtype) for part in (angles.cos(), angles.sin()))
    one, other = x.unflatten(-1, (2, 2, quarter)).unbind(-2)
    return torch.stack([one * cosine - other * sine, one * sine + other * cosine], -2).flatten(-3)
