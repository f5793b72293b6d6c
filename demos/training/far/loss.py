"""What `tiny-far` learns: the velocity of each block's latents behind the clean blocks before it."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AnyFlowFARTransformer3DModel

from ..wan.shape import SHIFT
from .shape import BLOCK

LEVELS = 1000  # time steps of the noise


class TrainingAttention:
    """Attention under a dense mask, whose backward pass needs no compiler, where the model's own asks for one."""

    def __call__(self, attn: Any, hidden_states: torch.Tensor, rotary_emb: Any, attention_mask: torch.Tensor, **_: Any):
        query, key = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(hidden_states))
        value = attn.to_v(hidden_states)
        query, key, value = (x.unflatten(2, (attn.heads, -1)).transpose(1, 2) for x in (query, key, value))
        turn = rotary_emb["query"].to(torch.complex64)
        query, key = (_turned(x, turn).to(value.dtype) for x in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        return attn.to_out[0](mixed.transpose(1, 2).flatten(2))

    @classmethod
    def put_on(cls, model: AnyFlowFARTransformer3DModel) -> None:
        for block in model.blocks:
            block.attn1.set_processor(cls())


def _turned(states: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(states.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2)


class BlockLoss:
    """Squared error of the velocity (Lipman et al., 2023) in the last blocks of clips.

    As in FAR (Gu et al., 2025) blocks are noised apart from each other, and each sees the clean ones before it: the
    nearest as they are, those further back in larger patches.
    """

    def __init__(self, model: AnyFlowFARTransformer3DModel) -> None:
        self.model = model
        self.mask = functools.cache(self._mask)

    def _mask(self, blocks: int, height: int, width: int, device: torch.device) -> torch.Tensor:
        """Which token `[N, N]` sees which."""
        partition = [BLOCK] * blocks
        sparse = self.model.build_attention_mask(
            chunk_partition=partition, height=height, width=width, has_clean_context=True, device=device
        )
        size, config = (height // 2) * (width // 2), self.model.config
        near = min(blocks, config.full_chunk_limit) * BLOCK
        tokens = 2 * near * size + (blocks * BLOCK - near) * size // 4
        place = torch.arange(tokens, device=device)
        return sparse.mask_mod(0, 0, place[:, None], place[None])

    def __call__(
        self, latents: torch.Tensor, text: torch.Tensor, shares: torch.Tensor, ends: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        """A mean over elements, `[B]`.

        Parameters
        ----------
        latents, noise
            `[B, T, C, H, W]`, T frames of whole blocks.
        text
            `[B, L, D]`.
        shares, ends
            `[B, blocks]` in (0, 1): the first becomes the level of noise by the scheduler's shift, the second times
            this level is the time that the model is told a step would end at; it has no influence on the velocity.
        """
        count, frames = latents.shape[:2]
        near = min(frames, self.model.config.full_chunk_limit * BLOCK)
        sigma = (SHIFT * shares / (1 + (SHIFT - 1) * shares)).repeat_interleave(BLOCK, 1)
        sigma = torch.where(torch.arange(frames, device=sigma.device) < frames - near, 0.0, sigma)
        level = sigma[..., None, None, None]
        velocity = self.model(
            hidden_states=(1 - level) * latents + level * noise,
            clean_hidden_states=latents[:, -near:],
            timestep=sigma * LEVELS,
            r_timestep=sigma * LEVELS * ends.repeat_interleave(BLOCK, 1),
            clean_timestep=torch.zeros(count, near, device=sigma.device),
            encoder_hidden_states=text,
            chunk_partition=[BLOCK] * (frames // BLOCK),
            attention_mask=self.mask(frames // BLOCK, *latents.shape[-2:], latents.device),
            return_dict=False,
        )[0]
        error = velocity.float() - (noise - latents)[:, -near:]
        return error.square().mean((1, 2, 3, 4))
