"""What the head is trained on: talks that the model wrote alone, questions too, and its hidden states meanwhile.

A chat model that is given nothing but the beginning of a user's turn writes what users ask (Magpie, Xu et al., 2024).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tqdm import tqdm

from mmaccel.decoding.drafters.heads.eagle_head import layers_read
from mmaccel.vlm.bench.language_texts import KINDS, text_of

from ..checkpoint import write

ASKED, ANSWERED = 64, 192  # tokens of a question and of an answer, at most
TEXTS = 0.2  # share of the questions that are about a text
FIRST_TEXT = 1000  # seed of the first of them: the benchmarks' are below
ABOUT = (
    "Give me the gist of this:\n\n{}",
    "{}\n\nWhat are the main points?",
    "Write this again in simpler words:\n\n{}",
    "Correct the mistakes in this text, if there are any:\n\n{}",
)


@dataclass(frozen=True)
class Talk:
    """A question and its answer.

    Attributes
    ----------
    tokens : int32 `[N]`
        Prompt and answer.
    states : bfloat16 `[N - 1, F + H]`
        What the head reads of each token, and the model's last hidden state; the last token was not read.
    asked
        Tokens of the prompt.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    asked: int


def talks(model: Any, tokenizer: Any, folder: Path, count: int, batch: int, seed: int) -> list[Talk]:
    """`count` talks, batch by batch, each of which is kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number in tqdm(range(-(-count // batch)), desc="talks", unit="batch", mininterval=5, ncols=100):
        path = folder / f"talks-{number:04}.safetensors"
        if not path.is_file():
            torch.manual_seed(seed * 10_000 + number)
            write(_written(model, tokenizer, batch, number), path)
        found.extend(_talks(load_file(path)))
    return found


def _talks(kept: dict[str, torch.Tensor]) -> list[Talk]:
    lengths = kept["lengths"].tolist()
    parts = kept["tokens"].split(lengths), kept["states"].split([length - 1 for length in lengths])
    return [Talk(tokens, states, asked) for tokens, states, asked in zip(*parts, kept["asked"].tolist(), strict=True)]


def _written(model: Any, tokenizer: Any, batch: int, number: int) -> dict[str, torch.Tensor]:
    """Talks of one batch; every second batch is answered greedily, and long prompts by themselves."""
    prompts = sorted(_prompts(model, tokenizer, batch, number), key=len)
    how = {"do_sample": True, "temperature": 0.8, "top_k": 0} if number % 2 else {"do_sample": False}
    short, found = batch - round(TEXTS * batch), list[Talk]()
    for part in (prompts[:short], prompts[short:]):
        padded = tokenizer.pad({"input_ids": part}, return_tensors="pt", padding_side="left")
        with reading(model) as read:
            ids = model.generate(**padded, **how, max_new_tokens=ANSWERED)
        width, states = padded["input_ids"].shape[1], torch.cat([torch.cat(step, -1) for step in read], 1)
        for row, prompt in enumerate(part):
            tokens = [*prompt, *_until(ids[row, width:].tolist(), tokenizer.eos_token_id)]
            seen = states[row, width - len(prompt) :][: len(tokens) - 1]
            found.append(Talk(torch.tensor(tokens, dtype=torch.int32), seen, len(prompt)))
    return {
        "tokens": torch.cat([talk.tokens for talk in found]),
        "states": torch.cat([talk.states for talk in found]),
        "lengths": torch.tensor([len(talk.tokens) for talk in found], dtype=torch.int32),
        "asked": torch.tensor([talk.asked for talk in found], dtype=torch.int32),
    }


@contextmanager
def reading(model: Any) -> Iterator[list[list[torch.Tensor]]]:
    """What the head reads in each pass, and the last hidden state, in bfloat16."""
    decoder, steps = model.get_decoder(), list[list[torch.Tensor]]()
    hooks = [
        decoder.layers[layer].register_forward_pre_hook(lambda _, inputs: steps[-1].append(inputs[0].bfloat16()))
        for layer in layers_read(len(decoder.layers))
    ]
    hooks.append(decoder.register_forward_pre_hook(lambda *_: steps.append([])))
    hooks.append(decoder.norm.register_forward_hook(lambda _, __, output: steps[-1].append(output.bfloat16())))
    try:
        yield steps
    finally:
        for hook in hooks:
            hook.remove()


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


def _prompts(model: Any, tokenizer: Any, batch: int, number: int) -> list[list[int]]:
    """Prompts as the chat template has them, of questions that the model asks and of questions about a text."""
    chance = random.Random(number)
    about = round(TEXTS * batch)
    texts = [
        chance.choice(ABOUT).format(
            text_of(chance.choice(list(KINDS)), chance.randrange(200, 800), FIRST_TEXT + number * batch + each)
        )
        for each in range(about)
    ]
    asked = [*texts, *_questions(model, tokenizer, batch - about)]
    turns = [[{"role": "user", "content": question}] for question in asked]
    return [
        tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"] for turn in turns
    ]


def _questions(model: Any, tokenizer: Any, count: int) -> list[str]:
    """What the model writes as the user."""
    mark = "\x00"
    talk = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    before = tokenizer(talk[: talk.index(mark)], return_tensors="pt", add_special_tokens=False).input_ids
    how = {"do_sample": True, "temperature": 0.9, "top_k": 200}  # top-p would sort the vocabulary for each token
    before = before.expand(count, -1)
    found = model.generate(before, attention_mask=torch.ones_like(before), **how, max_new_tokens=ASKED)
    ids = [_until(row, tokenizer.eos_token_id) for row in found[:, before.shape[1] :].tolist()]
    return [tokenizer.decode(row, skip_special_tokens=True).strip() for row in ids]
