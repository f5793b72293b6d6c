"""Who fills the canvases of the benchmark: the plain pipeline, fewer steps, its threshold, rules, and the verifier."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.method import Method
from mmaccel.plan import plan
from mmaccel.registry import get_method
from mmaccel.session import accelerate

from ..caches.interval_cache import IntervalCache
from ..caches.prefix_cache import PrefixCache
from ..caches.window_diffusion import WindowDiffusion
from ..outlooks.adaptive_blocks import AdaptiveBlocks
from ..outlooks.early_end import EarlyEnd
from ..rules.coherent_context import CoherentContext
from ..rules.credit_decoding import CreditDecoding
from ..rules.doubling import Doubling
from ..rules.entropy_bound import EntropyBound
from ..rules.factor_commit import FactorCommit
from ..rules.local_leap import LocalLeap
from ..rules.prophet import Prophet
from ..rules.sched import SchED
from ..verifiers.free_dave import FreeDave
from ..verifiers.guided_commit import GuidedCommit
from ..verifiers.s2d2 import S2D2

STEPS = (16, 8, 4, 3, 2, 1)  # of a block of 32, in place of one for each token
FEW = 4  # in the short form
THRESHOLDS = (0.95, 0.9, 0.7)  # the last is the pipeline's default
WORDS = "word by word"
DRAFTS = "vlm.FusedDraft"  # the alternative for the same weights, written word by word
METHODS: tuple[Method, ...] = (
    FreeDave(drafts=2),
    FreeDave(),
    FreeDave(drafts=8),
    FactorCommit(),
    FactorCommit(0.5),
    FactorCommit(1.0),
    FactorCommit(2.0),
    EntropyBound(0.03),
    EntropyBound(),
    EntropyBound(0.3),
    EntropyBound(1.0),
    LocalLeap(),
    LocalLeap(anchor=0.8, near=0.6),
    CreditDecoding(),
    CreditDecoding(decay=0.8, power=0.2),
    CoherentContext(steps=2),
    CoherentContext(),
    Doubling(),
    Prophet(),
    SchED(),
    S2D2(),
    GuidedCommit(),
    EarlyEnd(),
)
BESIDE: tuple[tuple[Method, ...], ...] = (  # a rule or a verifier, and what stands beside it
    (FreeDave(), EarlyEnd(), PrefixCache()),
    (FactorCommit(), EarlyEnd(), PrefixCache()),
    (FactorCommit(1.0), AdaptiveBlocks(default=16), PrefixCache()),
    (LocalLeap(), AdaptiveBlocks(default=16), PrefixCache()),
    (FactorCommit(), IntervalCache()),
    (FactorCommit(), WindowDiffusion()),
    (S2D2(), IntervalCache()),
)


def cases(pipe: Any, full: bool) -> list[Entry]:
    """All entries, each alone and with the cache."""
    methods = METHODS if full else (FreeDave(), FactorCommit())
    thresholds, steps = (THRESHOLDS, STEPS) if full else (THRESHOLDS[-1:], (FEW,))
    cached, cache = plan(pipe, PrefixCache()), {"cache": True}
    entries = [Entry(PLAIN, PLAIN), Entry("one token a step", "method", cached, columns=cache)]
    for fewer in steps:
        entries.append(Entry("fewer steps", "simple", fewer=fewer))
        entries.append(Entry("fewer steps", "method", cached, fewer, columns=cache))
    for threshold in thresholds:
        call, columns = functools.partial(_calling, threshold=threshold), {"threshold": threshold}
        entries.append(Entry("own threshold", "rival", setup=call, columns=columns))
        both = functools.partial(call, cache=True)
        entries.append(Entry("own threshold", "method", setup=both, columns={**columns, **cache}))
    for method in methods:
        entries.append(Entry.of(pipe, method))
        entries.append(Entry(str(method), "method", plan(pipe, method, PrefixCache()), columns=cache))
    for several in BESIDE if full else ():
        kept = {"cache": any(isinstance(method, PrefixCache) for method in several)}
        entries.append(Entry(" + ".join(map(str, several)), "method", plan(pipe, *several), columns=kept))
    words = [Entry(WORDS, "rival", setup=_word_by_word)]
    words.append(Entry(f"{WORDS}, drafted", "rival", setup=functools.partial(_word_by_word, name=DRAFTS)))
    return [*entries, *words]


@contextmanager
def _calling(pipe: Any, threshold: float, cache: bool = False) -> Iterator[Callable[..., Any]]:
    """The pipeline with a threshold of its own."""
    with accelerate(pipe, PrefixCache()) if cache else nullcontext(pipe) as target:
        yield lambda **call: target(**{**call, "threshold": threshold})


@contextmanager
def _word_by_word(pipe: Any, name: str = "") -> Iterator[Callable[..., Any]]:
    """The same weights by the model's own `generate`, one word after the other; drafted by a method if it is named."""
    model = pipe.model.model
    with accelerate(model, get_method(name)()) if name else nullcontext(model) as target:

        def write(gen_length: int, num_inference_steps: int, threshold: float, **inputs: torch.Tensor) -> Any:
            tokens = target.generate(**inputs, max_new_tokens=gen_length, do_sample=False)
            own = tokens[:, inputs["input_ids"].shape[1] :]
            return SimpleNamespace(texts=pipe.tokenizer.batch_decode(own, skip_special_tokens=True))

        yield write
