"""What `tiny-canvas` is trained on: pictures, their lists, and copies of the lists with words masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmaccel.zoo.worlds import listed_world

from ..recipe import IGNORED


@dataclass
class Batch:
    """Pictures with their lists.

    Attributes
    ----------
    frames : uint8 `[B, 1, H, W, 3]`
    tokens : int64 `[B, N]`
        Prompt with its placeholders, list, and the end of the text again and again.
    noisy : int64 `[B, N - first]`
        The tokens from `first` on, of whose list a part is masked in each block.
    labels : int64 `[B, N - first]`
        What the masks stand for; `IGNORED` elsewhere, and in blocks behind the end.
    following : int64 `[B, N]`
        What an autoregressive model says next; `IGNORED` before the list and behind its end.
    first, block
        Where the first block begins, and how long blocks are.
    """

    frames: torch.Tensor
    tokens: torch.Tensor
    noisy: torch.Tensor
    labels: torch.Tensor
    following: torch.Tensor
    first: int
    block: int


def draw(processor: Any, sprites: Any, seed: list[int], count: int, block: int, held_out: bool = False) -> Batch:
    """A batch, a pure function of its arguments; blocks begin where left padding of any length may put them."""
    listings = [listed_world.draw_listing([*seed, i], held_out, sprites) for i in range(count)]
    prompt = prompt_of(processor, listings[0].picture)
    answers = [processor.tokenizer(listing.text)["input_ids"] for listing in listings]
    rng = np.random.default_rng([*seed, count])
    shift = int(rng.integers(block)) if rng.random() < 0.5 else 0
    first = len(prompt) - (len(prompt) + shift) % block
    longest = max(map(len, answers)) + 1 + len(prompt) - first
    length = first + -(-longest // block) * block
    end = processor.tokenizer.eos_token_id
    tokens = torch.full((count, length), end)
    tokens[:, : len(prompt)] = torch.tensor(prompt)
    for row, answer in zip(tokens, answers, strict=True):
        row[len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    ends = torch.tensor([len(prompt) + len(answer) for answer in answers])[:, None]  # where the first end stands
    noisy, labels = _masked(tokens, len(prompt), ends, first, block, processor.tokenizer.mask_token_id, rng)
    following = torch.full_like(tokens, IGNORED)
    place = torch.arange(length - 1)
    spoken = (place >= len(prompt) - 1) & (place < ends)
    following[:, :-1] = torch.where(spoken, tokens[:, 1:], IGNORED)
    frames = torch.from_numpy(np.stack([listing.picture for listing in listings]))[:, None]
    return Batch(frames, tokens, noisy, labels, following, first, block)


def prompt_of(processor: Any, picture: np.ndarray) -> list[int]:
    """Tokens of the question about a picture, which is shown as a video of one frame."""
    inputs = processor(videos=[picture[None]], text=listed_world.QUESTION)
    return list(inputs["input_ids"][0].tolist())


def _masked(
    tokens: torch.Tensor,
    prompt: int,
    ends: torch.Tensor,
    first: int,
    block: int,
    mask: int,
    rng: np.random.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks with a share of their words masked, which is drawn anew for each block, and the labels."""
    count, length = tokens.shape
    blocks = (length - first) // block
    share = torch.from_numpy(rng.random((count, blocks, 1)))
    chosen = (torch.from_numpy(rng.random((count, blocks, block))) < share).flatten(1)
    place = torch.arange(first, length)
    chosen &= (place >= prompt) & ((place - first) // block <= (ends - first) // block)
    own = tokens[:, first:]
    return torch.where(chosen, mask, own), torch.where(chosen, own, IGNORED)
