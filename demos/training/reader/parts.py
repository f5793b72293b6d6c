"""The model that trains to be `tiny-reader`, with a head for the letters of patches, which is not shipped."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import LightOnOcrForConditionalGeneration, PreTrainedTokenizerFast
from transformers.modeling_utils import AttentionInterface

from mmaccel.zoo.worlds.page_world import CHARACTERS

from ..recipe import IGNORED, classified
from .data import Batch
from .shape import WIDTH

LOOKING_LAYER = 2  # of the decoder, whose first head is taught to look at the next letter
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]) * 255  # of the processor
SPREAD = torch.tensor([0.26862954, 0.26130258, 0.27577711]) * 255


def reading_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Causal attention; a watched layer remembers the log of what the first head of each text token looks at."""
    groups = query.shape[1] // key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype)
    if getattr(module, "watched", None) is not None:
        first = module.watched
        scores = (query[:, 0, first:] * scaling @ key[:, 0].transpose(1, 2)).float()
        unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(first + 1)
        module.looked = scores.masked_fill(unseen, -1e4).log_softmax(-1)
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return mixed.transpose(1, 2).contiguous(), None


def looking_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Attention of the vision encoder, of all to all of one picture."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    return F.scaled_dot_product_attention(query, key, value, scale=scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register("reading", reading_attention)
AttentionInterface.register("looking", looking_attention)


class Trained(torch.nn.Module):
    """The model with its losses."""

    def __init__(self, model: LightOnOcrForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.model = model
        self.start, self.end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        self.letter_head = torch.nn.Linear(WIDTH, 2 * (1 + len(CHARACTERS)))
        self.letter_norm = torch.nn.RMSNorm(WIDTH)
        self.model.config.text_config._attn_implementation = "reading"
        self.model.config.vision_config._attn_implementation = "looking"

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """Projected tokens of pictures uint8 `[B, H, W, 3]` of one size, `[B, P, D]`."""
        vision, projection = self.model.model.vision_encoder, self.model.model.vision_projection
        pixels = ((pictures.float() - MEAN) / SPREAD).movedim(-1, 1)
        grid = vision.patch_conv(pixels)
        hidden = vision.ln_pre(grid.flatten(2).transpose(1, 2))
        places = torch.cartesian_prod(torch.arange(grid.shape[2]), torch.arange(grid.shape[3]))
        rotary = vision.patch_positional_embedding(hidden, places)
        hidden = vision.transformer(hidden, attention_mask=None, position_embeddings=rotary).last_hidden_state
        merged = projection.patch_merger.merging_layer(projection.norm(hidden))
        return projection.linear_2(projection.act(projection.linear_1(merged)))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits `[B, N, V]`, features `[B, P, D]`, and log of what is looked at `[B, N, P]`."""
        features = self.features(batch.pictures)
        language = self.model.model.language_model
        count, patches = len(features), features.shape[1]
        before, behind = (torch.tensor(ids).expand(count, -1) for ids in ([self.start], [self.end, self.start]))
        embed = language.embed_tokens
        text = embed(torch.cat([behind, batch.tokens[:, :-1]], 1))
        hidden = torch.cat([embed(before), features.to(text.dtype), text], 1)
        rotary = language.rotary_emb(hidden, torch.arange(hidden.shape[1])[None])
        first = patches + 2  # the token that says the first letter
        watched = language.layers[LOOKING_LAYER].self_attn
        watched.watched = first
        for layer in language.layers:
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
        looked = watched.__dict__.pop("looked")[..., 1 : 1 + patches]
        return self.model.lm_head(language.norm(hidden[:, first:])), features, looked

    def losses(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Cross entropy of the text, of where it is read, and of the letters of patches; share of right tokens."""
        logits, features, looked = self(batch)
        said, right = classified(logits, batch.labels)
        seen = self.letter_head(self.letter_norm(features)).unflatten(-1, (2, -1))
        letters, letters_right = classified(seen, batch.letters)
        printed = batch.patches != IGNORED
        found = -looked.gather(2, batch.patches.clamp(min=0)[..., None])[..., 0][printed].mean()
        whole = ((logits.argmax(-1) == batch.labels) | (batch.labels == IGNORED)).all(1).float().mean()
        return {"said": said, "right": right, "whole": whole, "found": found, "letters": letters,
                "letters_right": letters_right}  # fmt: skip
