"""The model that trains to be `tiny-canvas`: it reads a text causally, and beside it all blocks with words masked."""

from __future__ import annotations

import torch
from transformers import LlavaOnevisionForConditionalGeneration
from transformers.modeling_utils import AttentionInterface

from ..onevision.parts import plain_attention  # noqa: F401  registers "plain"
from ..recipe import classified, to_pixels
from .data import Batch


def masked_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Attention under a mask of booleans `[1, 1, N, M]`, by plain matrix products."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query.to(value.dtype) * scaling) @ key.to(value.dtype).transpose(2, 3)
    weights = scores.masked_fill(~attention_mask, -1e4).softmax(-1, dtype=value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("masked", masked_attention)


class Trained(torch.nn.Module):
    """The model with the two losses: of the next word, and of the masked ones."""

    def __init__(self, model: LlavaOnevisionForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        self.model.config.text_config._attn_implementation = "masked"
        self.model.config.vision_config._attn_implementation = "plain"

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the text `[B, N, V]` and of its blocks `[B, N - first, V]`."""
        inner = self.model.model
        embed = inner.get_input_embeddings()
        features = self.model.get_video_features(to_pixels(batch.frames)).pooler_output
        text = embed(batch.tokens)
        shown = (batch.tokens == self.model.config.video_token_id)[..., None]
        text = text.masked_scatter(shown, features.to(text.dtype))
        noisy = torch.where(shown[:, batch.first :], text[:, batch.first :], embed(batch.noisy))  # blocks see them too
        hidden = torch.cat([text, noisy], 1)
        length = batch.tokens.shape[1]
        positions = torch.cat([torch.arange(length), torch.arange(batch.first, length)])[None]
        mask = seen(length, batch.first, batch.block)[None, None]
        language = inner.language_model
        rotary = language.rotary_emb(hidden, positions)
        for layer in language.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary)
        logits = self.model.lm_head(language.norm(hidden))
        return logits[:, :length], logits[:, length:]

    def losses(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Cross entropy of the next words and of the masked ones, and the shares of words that are right."""
        said, filled = self(batch)
        next_loss, next_right = classified(said, batch.following)
        mask_loss, mask_right = classified(filled, batch.labels)
        return {"next": next_loss, "next_right": next_right, "masked": mask_loss, "masked_right": mask_right}


def seen(length: int, first: int, block: int) -> torch.Tensor:
    """Which key each query sees: the text causally; a block all of itself and the text before it. `[N + M, N + M]`."""
    text, behind = torch.arange(length), torch.arange(first, length)
    begins = behind - (behind - first) % block
    causal = text[:, None] >= text
    before = begins[:, None] > text
    together = begins[:, None] == begins
    nothing = torch.zeros(length, len(behind), dtype=torch.bool)
    return torch.cat([torch.cat([causal, nothing], 1), torch.cat([before, together], 1)])
