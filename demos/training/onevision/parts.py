"""The model that trains to be `tiny-onevision`: heads for dense labels, attention of packed questions, losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast
from transformers.modeling_utils import AttentionInterface

from ..recipe import IGNORED, classified, to_pixels
from .data import GROUNDS, MOTIONS, THINGS, Batch
from .shape import SIDE, WIDTH
from .thinning import joined

TRACKING_LAYER = 4  # after so many layers, visual tokens are to know where their thing goes
SPREAD = 10.0
CHUNK = 256  # queries that share a stretch of keys, so that little is computed that causality hides


def packed_attention(
    module, query, key, value, attention_mask, scaling, dropout=0.0, *, prefix: int, block: int, **kwargs
):
    """Attention of a prefix, and behind it of blocks that see the prefix and themselves, each causally.

    By plain matrix products, whose backward pass is several times faster on a CPU in bfloat16. `[B, H, N, E]`.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    query = query.to(value.dtype) * scaling
    key = key.to(value.dtype)
    mixed = []
    for first in range(0, prefix, CHUNK):
        last = min(first + CHUNK, prefix)
        hidden = torch.ones(last - first, last, dtype=torch.bool).triu(first + 1)
        scores = (query[:, :, first:last] @ key[:, :, :last].transpose(2, 3)).masked_fill(hidden, -1e4)
        mixed.append(scores.softmax(-1, dtype=value.dtype) @ value[:, :, :last])
    if query.shape[2] > prefix:
        behind, module.spread = _blocks(query[:, :, prefix:], key, value, prefix, block)
        mixed.append(behind)
    return torch.cat(mixed, 2).transpose(1, 2).contiguous(), None


@torch.no_grad()
def soften(language_model: torch.nn.Module, spread: float = SPREAD) -> None:
    """Scale down the queries of heads whose scores stand too far apart (QK-clip of Kimi K2, 2025).

    Muon lets scores grow until a head sees a single token, from where it learns nothing more. `spread` is the most
    that a question's words may lift the highest score of a visual token above their mean.
    """
    for layer in language_model.layers:
        attention = layer.self_attn
        scale = (spread / attention.spread).clamp(max=1).repeat_interleave(attention.head_dim)
        attention.q_proj.weight.mul_(scale[:, None])
        attention.q_proj.bias.mul_(scale)


def _blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, prefix: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the blocks behind a prefix, and how far the best score stands above the mean, of each head `[H]`."""
    own_query, own_key, own_value = (
        x.unflatten(2, (-1, block)) for x in (query, key[:, :, prefix:], value[:, :, prefix:])
    )
    hidden = torch.ones(block, block, dtype=torch.bool).triu(1)
    own = (own_query @ own_key.transpose(3, 4)).masked_fill(hidden, -1e4).flatten(2, 3)
    scores = torch.cat([query @ key[:, :, :prefix].transpose(2, 3), own], -1)
    weights = scores.softmax(-1, dtype=value.dtype)
    behind = (weights[..., prefix:].unflatten(2, (-1, block)) @ own_value).flatten(2, 3)
    seen = scores[..., :prefix].detach()
    spread = (seen.amax(-1) - seen.mean(-1)).float().mean((0, 2))
    return weights[..., :prefix] @ value[:, :, :prefix] + behind, spread


def plain_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Attention of the vision tower, of all to all, in the same way; a watched layer remembers what each received."""
    weights = (query.to(value.dtype) * scaling @ key.to(value.dtype).transpose(2, 3)).softmax(-1, dtype=value.dtype)
    if getattr(module, "watched", False):
        module.received = weights.float().mean((1, 2))
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("packed", packed_attention)
AttentionInterface.register("plain", plain_attention)


class Trained(torch.nn.Module):
    """The model with heads for dense labels, which are not shipped."""

    def __init__(self, model: LlavaOnevisionForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.model = model
        self.opening = tokenizer("<|im_start|> user")["input_ids"]
        self.words = {
            kind: torch.tensor([tokenizer(text)["input_ids"][-1] for text in texts])
            for kind, texts in (("things", (*THINGS, *GROUNDS)), ("motions", MOTIONS), ("arrivals", ("first", "last")))
        }
        self.thing_norm, self.track_norm = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.thing_head = torch.nn.Linear(WIDTH, len(THINGS) + len(GROUNDS))
        self.thing_place = torch.nn.Linear(WIDTH, 2 * SIDE)
        self.track_head = torch.nn.Linear(WIDTH, len(THINGS) * len(MOTIONS))
        self.model.config.text_config._attn_implementation = "packed"
        self.model.config.vision_config._attn_implementation = "plain"
        self._last_look.watched = True

    def features(self, frames: torch.Tensor) -> torch.Tensor:
        """Projected and pooled tokens, `[B, T * SIDE * SIDE + 1, D]`, the last of them for the end of the video."""
        return self.model.get_video_features(to_pixels(frames)).pooler_output

    @property
    def _last_look(self) -> torch.nn.Module:
        return self.model.model.vision_tower.encoder.layers[-1].self_attn

    def attention(self) -> torch.Tensor:
        """What the pooled tokens of the frames last seen received in the tower's last layer, `[B * T, SIDE * SIDE]`.

        Once after each call of `features`: a module that still holds a graph could not be copied.
        """
        received = self._last_look.__dict__.pop("received").view(-1, 1, 2 * SIDE, 2 * SIDE)
        return F.avg_pool2d(received, 2).flatten(1)

    def looking_loss(self, batch: Batch) -> torch.Tensor:
        """Cross entropy of the attention that tokens receive in the tower's last layer, to be that of `middles`."""
        aim, received = middles(batch.things.flatten(0, 1)), self.attention()
        missed = -(aim * (received / received.sum(-1, keepdim=True)).log()).sum(-1)
        return missed[aim.sum(-1) > 0].mean()

    def things_loss(self, features: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cross entropy and share of right labels of what stands at each token; cross entropy of where the token is.

        The second keeps rows and columns in the features, which what stands there does not need.
        """
        normed = self.thing_norm(features[:, :-1])
        loss, right = classified(self.thing_head(normed), batch.things.flatten(1))
        rows, columns = self.thing_place(normed).float().flatten(0, 1).chunk(2, -1)
        place = torch.arange(len(rows)) % SIDE**2
        where = F.cross_entropy(rows, place // SIDE) + F.cross_entropy(columns, place % SIDE)
        return loss, right, where

    def forward(
        self,
        features: torch.Tensor,
        tokens: torch.Tensor,
        times: torch.Tensor | None = None,
        kept: torch.Tensor | None = None,
        late: torch.Tensor | None = None,
        late_own: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits `[B, K, L, V]`; hidden states of visual tokens after `TRACKING_LAYER` layers, of words after one more.

        `times` puts each frame at the position that it has in the whole clip; without, positions have no gaps. `kept`
        are the visual tokens that are seen, and `late` those of them that are still there behind `TRACKING_LAYER`,
        merged with the others as :func:`joined` does where `late_own` is given.
        """
        if kept is not None:
            index = torch.cat([kept, torch.full_like(kept[:, :1], features.shape[1] - 1)], 1)
            features = features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
        language = self.model.model.language_model
        start = torch.tensor(self.opening).expand(len(tokens), -1)
        embed = language.embed_tokens
        hidden = torch.cat([embed(start), features.to(embed.weight.dtype), embed(tokens.flatten(1))], 1)
        opening, visual = start.shape[1], features.shape[1]
        positions = self._positions(opening, visual, tokens, times, kept)
        rotary = language.rotary_emb(hidden, positions)
        options = {"prefix": opening + visual, "block": tokens.shape[2]}
        for i, layer in enumerate(language.layers):
            if i == TRACKING_LAYER:
                tracked = hidden[:, opening : opening + visual - 1]
                if late is not None:
                    if late_own is not None:
                        merged = joined(tracked, late, late_own)
                        place = (opening + late)[..., None].expand_as(merged)
                        hidden = hidden.scatter(1, place, merged)
                    hidden, rotary = _without(hidden, rotary, opening, visual, late)
                    visual = late.shape[1] + 1
                    options["prefix"] = opening + visual
            if i == TRACKING_LAYER + 1:
                asked = hidden[:, opening + visual :]
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary, **options)
        answers = language.norm(hidden[:, opening + visual :])
        return self.model.lm_head(answers).unflatten(1, tokens.shape[1:]), tracked, asked

    @staticmethod
    def _positions(
        opening: int, visual: int, tokens: torch.Tensor, times: torch.Tensor | None, kept: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Those of the prefix, and again and again those behind it, `[B, N]`."""
        count, questions, length = tokens.shape
        if times is None:
            frames = opening + torch.arange(visual - 1).expand(count, -1)
        else:
            frames = (opening + times[..., None] * SIDE**2 + torch.arange(SIDE**2)).flatten(1)
            frames = frames if kept is None else frames.gather(1, kept)
        newline = frames[:, -1:] + 1
        behind = (newline + 1 + torch.arange(length)).repeat(1, questions)
        start = torch.arange(opening).expand(count, -1)
        return torch.cat([start, frames, newline, behind], 1)

    def tracks_loss(self, tracked: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross entropy and share of right labels of thing and motion at each visual token."""
        return classified(self.track_head(self.track_norm(tracked)), batch.tracks.flatten(1))

    def asked_loss(self, asked: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same at the words of a question that mean a thing: they have found it."""
        return classified(self.track_head(self.track_norm(asked)), batch.asked.flatten(1))

    def words_loss(self, tracked: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of what each token shows, which way that goes and when it came, among the model's own words for it.

        So a visual token is like the words for what it shows, and a question's words find what they ask about.
        """
        logits = self.model.lm_head(self.track_norm(tracked))
        motions = torch.where(batch.tracks == IGNORED, IGNORED, batch.tracks % len(MOTIONS))
        labels = {"things": batch.things, "motions": motions, "arrivals": batch.arrivals}
        told = [classified(logits[..., self.words[kind]], labels[kind].flatten(1)) for kind in labels]
        losses, rights = zip(*told, strict=True)
        return torch.stack(losses).sum(), torch.stack(rights).mean()


def middles(things: torch.Tensor) -> torch.Tensor:
    """Shares of attention for the tokens of a frame, `[B, SIDE * SIDE]`: the same for each thing, most at its middle.

    So few tokens of a frame show all of its things. `things` as in `Batch`; without any thing all shares are 0.
    """
    shown = things[..., None] == torch.arange(len(THINGS))
    places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).float()
    middle = (shown[..., None] * places[:, None]).sum(1, keepdim=True) / shown.sum(1, keepdim=True)[..., None]
    distance = (places[:, None] - middle).square().sum(-1)
    shares = (-distance).masked_fill(~shown, -torch.inf).softmax(1).nan_to_num()
    return shares.sum(2) / shown.any(1).sum(1, keepdim=True).clamp(min=1)


def answer_loss(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of the answers, and the share of questions of which every word is right."""
    loss = F.cross_entropy(logits.float().flatten(0, 2), labels.flatten(), ignore_index=IGNORED)
    right = ((logits.argmax(-1) == labels) | (labels == IGNORED)).all(-1)
    asked = (labels != IGNORED).any(-1)
    return loss, right[asked].float().mean()


def _without(
    hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], opening: int, visual: int, late: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Hidden states and their rotations with only the visual tokens at `late`."""
    count, length = hidden.shape[:2]
    ends = [torch.arange(opening), torch.arange(opening + visual - 1, length)]
    before, behind = (end.expand(count, -1) for end in ends)
    index = torch.cat([before, opening + late, behind], 1)[..., None]

    def taken(values: torch.Tensor) -> torch.Tensor:
        values = values.expand(count, -1, -1)
        return values.gather(1, index.expand(-1, -1, values.shape[2]))

    return taken(hidden), (taken(rotary[0]), taken(rotary[1]))
