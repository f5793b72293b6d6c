"""Who draws in `mmaccel bench pictures`: the plain pipeline, other numbers of steps, methods, and tiny-janus."""

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

from ..late_guidance import LateGuidance
from ..rules.coherent_context import CoherentContext
from ..rules.credit_decoding import CreditDecoding
from ..rules.doubling import Doubling
from ..rules.entropy_bound import EntropyBound
from ..rules.factor_commit import FactorCommit
from ..rules.halton_order import HaltonOrder

MODEL, JANUS = "tiny-amused", "tiny-janus"
STEPS = 12  # of AmusedPipeline
FEWER, MORE = (10, 8, 6, 4), (24,)
METHODS: tuple[tuple[Method, ...], ...] = (
    *((HaltonOrder(steps),) for steps in (10, 8, 6, 4)),
    (LateGuidance(0.25),),
    (LateGuidance(0.5),),
    (HaltonOrder(8), LateGuidance(0.5)),
    (HaltonOrder(6), LateGuidance(0.5)),
    (EntropyBound(10.0),),
    (EntropyBound(30.0),),
    (FactorCommit(2.0),),
    (CreditDecoding(0.5),),
    (CoherentContext(0.5),),
    (Doubling(),),
)
DRAWERS = {
    "": None,
    "SpeculativeJacobi()": ("image.SpeculativeJacobi", {}),
    "ZipAR(window=4)": ("image.ZipAR", {"window": 4}),
    "ZipAR(window=2)": ("image.ZipAR", {"window": 2}),
}


def cases(pipe: Any, full: bool) -> list[Entry]:
    """All entries, the plain one first."""
    entries = [Entry(PLAIN, PLAIN)]
    entries += [Entry("fewer steps", "simple", fewer=steps) for steps in (FEWER if full else FEWER[1:2])]
    entries += [Entry("more steps", "rival", fewer=steps) for steps in (MORE if full else ())]
    for methods in METHODS if full else METHODS[1:2]:
        entries.append(Entry(" + ".join(map(str, methods)), "method", plan(pipe, *methods)))
    for name, method in DRAWERS.items():
        label = f"{JANUS}, {name}" if name else JANUS
        entries.append(Entry(label, "rival", setup=functools.partial(_by_janus, method=method)))
    return entries


@contextmanager
def _by_janus(pipe: Any, method: tuple[str, dict[str, Any]] | None) -> Iterator[Callable[..., Any]]:
    """The model that draws code after code, with a method of its own or without."""
    from mmaccel.image import generation

    painter = _painter()
    with (
        accelerate(painter.target, get_method(method[0])(**method[1]))
        if method
        else nullcontext(painter.target) as target
    ):

        def draw(prompts: list[str], generator: torch.Generator, **_: Any) -> Any:
            settings = generation.ImageSettings(seed=generator.initial_seed())
            return SimpleNamespace(images=painter.generate(target, prompts, settings))

        yield draw


@functools.cache
def _painter() -> Any:
    from mmaccel.image import generation

    return generation.load(JANUS)
