"""What the training of `tiny-wan` needs beside models and data: a fast attention, and the loss."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import WanTransformer3DModel
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from .shape import SHIFT, TEXT_LENGTH


class TrainingAttention:
    """Attention of Wan by plain matrix products, whose backward pass is three times faster on a CPU in bfloat16."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(context))
        value = attn.to_v(context)
        query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
        if rotary_emb is not None:
            query, key = _rotate(query, *rotary_emb), _rotate(key, *rotary_emb)
        query, key, value = (x.transpose(1, 2).to(value.dtype) for x in (query, key, value))
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        mixed = scores.softmax(-1, dtype=value.dtype) @ value
        return attn.to_out[0](mixed.transpose(1, 2).flatten(2))

    @classmethod
    def put_on(cls, transformer: WanTransformer3DModel, compiled: bool) -> None:
        """Use it in every block of one transformer, and compile the blocks if asked to."""
        for block in transformer.blocks:
            block.attn1.set_processor(cls())
            block.attn2.set_processor(cls())
            if compiled:
                block.compile(dynamic=False)


def _rotate(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    even, odd = states.unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = cosine[..., 0::2], sine[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


def encode_captions(
    tokenizer: PreTrainedTokenizerFast, text_encoder: UMT5EncoderModel, captions: list[str]
) -> torch.Tensor:
    """What `WanPipeline.encode_prompt` computes, `[B, TEXT_LENGTH, D]`: zeros after the end of each caption."""
    tokens = tokenizer(captions, padding="max_length", max_length=TEXT_LENGTH, truncation=True, return_tensors="pt")
    tokens = tokens.to(text_encoder.device)
    hidden = text_encoder(tokens["input_ids"], tokens["attention_mask"]).last_hidden_state
    return hidden * tokens["attention_mask"][..., None]


def flow_loss(
    module: torch.nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    latents: torch.Tensor,
    captions: list[str],
    shares: torch.Tensor,
    noise: torch.Tensor,
) -> torch.Tensor:
    """Squared error of the velocity (Lipman et al., 2023), a mean over elements, `[B]`.

    `shares` in (0, 1) become noise levels with the scheduler's shift, so that training and sampling meet the same.
    """
    sigma = SHIFT * shares / (1 + (SHIFT - 1) * shares)
    level = sigma.view(-1, 1, 1, 1, 1)
    text = encode_captions(tokenizer, module.text_encoder, captions)
    noisy = (1 - level) * latents + level * noise
    velocity = module.transformer(noisy, sigma * 1000, text, return_dict=False)[0]
    return (velocity.float() - (noise - latents)).square().mean((1, 2, 3, 4))
