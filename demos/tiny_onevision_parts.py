"""What the training of `tiny-onevision` needs beside model and world: packed questions and dense labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast
from transformers.modeling_utils import AttentionInterface

from . import moving_world as world
from .moving_questions import Question, choose
from .tiny_onevision import SIDE, WIDTH

IGNORED = -100
TRACKING_LAYER = 4  # after so many layers, visual tokens are to know where their thing goes
SEEN_ENOUGH = 4  # frames after which a motion can be told
THINGS = {name: i for i, name in enumerate(world.NAMES)}
GROUNDS = {name: len(THINGS) + i for i, name in enumerate(world.BACKGROUNDS)}
MOTIONS = {name: i for i, name in enumerate(world.MOTIONS)}
SPREAD = 10.0
CHUNK = 256  # queries that share a stretch of keys, so that little is computed that causality hides


@dataclass
class Batch:
    """Clips of equally many frames with their questions and labels.

    Attributes
    ----------
    frames : uint8 `[B, T, H, W, 3]`
    times : int64 `[B, T]`
        Which frames of the whole clips these are.
    things : int64 `[B, T, SIDE * SIDE]`
        The thing or background of each pooled token; `IGNORED` where there is some of both.
    tracks : int64 `[B, T, SIDE * SIDE]`
        Thing and motion in one, once it was seen long enough.
    arrivals : int64 `[B, T, SIDE * SIDE]`
        0 where what was there from the start stands and others came later, 1 where the last to come stands.
    tokens, labels : int64 `[B, K, L]`
        Each question with its answer, and what is to be predicted at each of its tokens.
    asked : int64 `[B, K, L]`
        At words of a question that mean one of the things: its thing and motion in one, as in `tracks`.
    """

    frames: torch.Tensor
    times: torch.Tensor
    things: torch.Tensor
    tracks: torch.Tensor
    arrivals: torch.Tensor
    tokens: torch.Tensor
    labels: torch.Tensor
    asked: torch.Tensor


def meant(clip: world.Clip, texts: list[str]) -> np.ndarray:
    """`asked` of :class:`Batch` for the words of one question, int64 `[L]`."""
    actors = clip.scene.actors
    by_motion = {m: [a for a in actors if a.motion == m] for m in MOTIONS}
    latest = max(actor.appears for actor in actors)
    found = {name.split()[-1]: [a for a in actors if a.name == name] for name in THINGS}
    found |= {motion.split()[-1]: takers for motion, takers in by_motion.items()}
    found |= {
        "first": [a for a in actors if not a.appears],
        "last": [a for a in actors if latest and a.appears == latest],
    }
    return np.array([_track(found[text][0]) if len(found.get(text, ())) == 1 else IGNORED for text in texts])


def _track(actor: world.Actor) -> int:
    return THINGS[actor.name] * len(MOTIONS) + MOTIONS[actor.motion]


def dense_labels(clip: world.Clip, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`things`, `tracks` and `arrivals` of :class:`Batch` at the frames at `times`, int64 `[T, SIDE**2]` each."""
    cell = world.IMAGE_SIZE // SIDE
    things = np.full((len(times), SIDE, SIDE), GROUNDS[clip.scene.background])
    tracks = np.full((len(times), SIDE, SIDE), IGNORED)
    arrivals = tracks.copy()
    latest = max(actor.appears for actor in clip.scene.actors)
    for actor, path in zip(clip.scene.actors, clip.places, strict=True):
        cover = np.zeros((len(times), world.IMAGE_SIZE, world.IMAGE_SIZE), np.float32)
        alpha = world.sprite(actor.name, world.SPRITE_SIZE)[..., 3]
        seen = times >= actor.appears
        for frame in np.flatnonzero(seen):
            top, left = path[times[frame]]
            cover[frame, top : top + len(alpha), left : left + len(alpha)] = alpha
        share = cover.reshape(-1, SIDE, cell, SIDE, cell).mean((2, 4))
        things[share > 0.08] = IGNORED
        things[share > 0.4] = THINGS[actor.name]
        if latest and actor.appears in (0, latest):
            arrivals[share > 0.4] = int(actor.appears == latest)
        since = times - times[seen].min(initial=world.ONEVISION.frames)
        told = (share > 0.4) & (since >= SEEN_ENOUGH)[:, None, None]
        tracks[told] = _track(actor)
    return things.reshape(len(times), -1), tracks.reshape(len(times), -1), arrivals.reshape(len(times), -1)


def draw(
    packer: Packer,
    seed: list[int],
    count: int,
    length: int,
    asked: int,
    footage: world.Footage = world.ONEVISION,
) -> Batch:
    """Clips to train on, a pure function of the seed: `length` frames of each, spread over the whole of it."""
    rng = np.random.default_rng(seed)
    rows, questions, clips = [], [], []
    for i in range(count):
        times = sampled_times(rng, length, footage.frames)
        clip = world.draw_clip([*seed, i], footage=footage, times=times)
        rows.append((clip.frames, times, *dense_labels(clip, times)))
        questions.append(choose(clip, rng, asked))
        clips.append(clip)
    arrays = [torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True)]
    tokens, labels = packer(questions)
    words = torch.full_like(tokens, IGNORED)
    for i, row in enumerate(questions):
        for j, question in enumerate(row):
            told = meant(clips[i], packer.tokenizer.tokenize(question.text))
            words[i, j, : len(told)] = torch.from_numpy(told)
    return Batch(*arrays, tokens, labels, words)


def sampled_times(rng: np.random.Generator, length: int, frames: int) -> np.ndarray:
    """The first frame, the last one, and others roughly evenly between them."""
    if length >= frames:
        return np.arange(frames)
    step = (frames - 1) / (length - 1)
    jitter = rng.uniform(-0.4, 0.4, length) * step
    jitter[[0, -1]] = 0
    return (np.arange(length) * step + jitter).round().astype(int)


class Packer:
    """Turns questions into tokens and labels; remembers those that it has met.

    Parameters
    ----------
    tokenizer
        That of the model.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.known: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def encode(self, question: Question) -> tuple[list[int], list[int]]:
        """What follows the video in a conversation, and what is to be predicted: the answer and its end."""
        key = (question.text, question.answer)
        if key not in self.known:
            asked = self.tokenizer(f"{question.text} <|im_end|> <|im_start|> assistant")["input_ids"]
            answer = [*self.tokenizer(question.answer)["input_ids"], self.tokenizer.eos_token_id]
            self.known[key] = asked + answer[:-1], [IGNORED] * (len(asked) - 1) + answer
        return self.known[key]

    def __call__(self, questions: list[list[Question]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and labels `[B, K, L]`, padded behind each question: under a causal mask that changes nothing."""
        rows = [[self.encode(question) for question in row] for row in questions]
        count, length = max(map(len, rows)), max(len(tokens) for row in rows for tokens, _ in row)
        tokens = torch.full((len(rows), count, length), self.tokenizer.pad_token_id)
        labels = torch.full((len(rows), count, length), IGNORED)
        for i, row in enumerate(rows):
            for j, (asked, answer) in enumerate(row):
                tokens[i, j, : len(asked)] = torch.tensor(asked)
                labels[i, j, : len(answer)] = torch.tensor(answer)
        return tokens, labels


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
    """Attention of the vision tower, of all to all, in the same way."""
    weights = (query.to(value.dtype) * scaling @ key.to(value.dtype).transpose(2, 3)).softmax(-1, dtype=value.dtype)
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

    def features(self, frames: torch.Tensor) -> torch.Tensor:
        """Projected and pooled tokens, `[B, T * SIDE * SIDE + 1, D]`, the last of them for the end of the video."""
        pixels = frames.movedim(-1, -3).float() / 127.5 - 1
        return self.model.get_video_features(pixels).pooler_output

    def things_loss(self, features: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cross entropy and share of right labels of what stands at each token; cross entropy of where the token is.

        The second keeps rows and columns in the features, which what stands there does not need.
        """
        normed = self.thing_norm(features[:, :-1])
        loss, right = _classified(self.thing_head(normed), batch.things.flatten(1))
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
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits `[B, K, L, V]`; hidden states of visual tokens after `TRACKING_LAYER` layers, of words after one more.

        `times` puts each frame at the position that it has in the whole clip; without, positions have no gaps. `kept`
        are the visual tokens that are seen, and `late` those of them that are still there behind `TRACKING_LAYER`.
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
        return _classified(self.track_head(self.track_norm(tracked)), batch.tracks.flatten(1))

    def asked_loss(self, asked: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same at the words of a question that mean a thing: they have found it."""
        return _classified(self.track_head(self.track_norm(asked)), batch.asked.flatten(1))

    def words_loss(self, tracked: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of what each token shows, which way that goes and when it came, among the model's own words for it.

        So a visual token is like the words for what it shows, and a question's words find what they ask about.
        """
        logits = self.model.lm_head(self.track_norm(tracked))
        motions = torch.where(batch.tracks == IGNORED, IGNORED, batch.tracks % len(MOTIONS))
        labels = {"things": batch.things, "motions": motions, "arrivals": batch.arrivals}
        told = [_classified(logits[..., self.words[kind]], labels[kind].flatten(1)) for kind in labels]
        losses, rights = zip(*told, strict=True)
        return torch.stack(losses).sum(), torch.stack(rights).mean()


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


def _classified(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = logits.float().flatten(0, 1), labels.flatten()
    known = labels != IGNORED
    if not known.any():
        return logits.sum() * 0, torch.ones(())
    return F.cross_entropy(logits[known], labels[known]), (logits[known].argmax(-1) == labels[known]).float().mean()
