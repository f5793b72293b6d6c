"""What `tiny-onevision` is trained on: clips with packed questions and dense labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from mmaccel.zoo.worlds import moving_world as world
from mmaccel.zoo.worlds.moving_questions import Question, choose

from ..recipe import IGNORED
from .shape import SIDE

SEEN_ENOUGH = 4  # frames after which a motion can be told
THINGS = {name: i for i, name in enumerate(world.NAMES)}
GROUNDS = {name: len(THINGS) + i for i, name in enumerate(world.BACKGROUNDS)}
MOTIONS = {name: i for i, name in enumerate(world.MOTIONS)}


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
