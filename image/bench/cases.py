"""What `mmaccel bench image` measures: the methods, batches and guidance of each alternation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmaccel import zoo
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.trial import Workload

from .. import generation
from ..decoding.coupling import COUPLINGS
from ..grouped_speculative import GroupedSpeculative
from ..method import ImageMethod
from ..speculative_jacobi import SpeculativeJacobi
from ..zipar import ZipAR

MODEL = "tiny-janus"
WINDOWS = (8, 16, 32, 64)
GUIDED = 2.0
QUALITY_METHODS: tuple[ImageMethod, ...] = (
    SpeculativeJacobi(window=8),
    GroupedSpeculative(),
    GroupedSpeculative(window=16, group_size=51, delta=0.3, distance=1.0),
    ZipAR(window=8),
    ZipAR(window=4),
    ZipAR(window=2),
    ZipAR(window=4, verify=True),
)
PLAIN_LOOP = SpeculativeJacobi(window=1)


@dataclass(frozen=True)
class ImageCase:
    """Runs that are measured in one alternation: same batch, same guidance."""

    batch: int
    guidance: float
    rounds: int
    methods: tuple[ImageMethod, ...]

    @property
    def is_guided(self) -> bool:
        return self.guidance != 1

    def entries(self, target: Any) -> tuple[Entry, list[Entry]]:
        """The baseline, and all entries: Janus's own generate cannot turn guidance off, so that a loop stands in."""
        entries = [Entry.of(target, method) for method in self.methods]
        if self.is_guided:
            plain = Entry(PLAIN, PLAIN, columns={"baseline": "own generate"})
            return plain, [*entries, plain]
        plain = next(entry for method, entry in zip(self.methods, entries, strict=True) if method == PLAIN_LOOP)
        plain.columns["baseline"] = "plain loop"
        return plain, entries


def cases(full: bool) -> list[ImageCase]:
    """What is measured; the short version takes two minutes, the full one is that of docs/benchmarks."""
    if not full:
        return [ImageCase(1, GUIDED, 3, (SpeculativeJacobi(), SpeculativeJacobi(window=16), ZipAR(window=4)))]
    windows = tuple(SpeculativeJacobi(window=w, coupling=c) for c in COUPLINGS for w in WINDOWS)
    lossy = tuple(method for method in QUALITY_METHODS if not method.exact)
    methods = (PLAIN_LOOP, SpeculativeJacobi(), *windows, SpeculativeJacobi(window=16, init="repeat_left"), *lossy)
    sizes = ((1, GUIDED, 8), (1, 1.0, 4), (4, GUIDED, 2), (4, 1.0, 2))
    return [ImageCase(batch, guidance, rounds, methods) for batch, guidance, rounds in sizes]


class Drawing(Workload):
    """Pictures of the prompts of a round, as many as the batch has; a seed is the number of its round."""

    def __init__(self, painter: generation.Painter, case: ImageCase) -> None:
        self.painter, self.target, self.case = painter, painter.target, case
        self.prompts = zoo.prompts(MODEL, 8 * case.batch, seed=1)

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Any:
        first, batch = seed * self.case.batch, self.case.batch
        chosen = [self.prompts[i % len(self.prompts)] for i in range(first, first + batch)]
        settings = generation.ImageSettings(seed=seed, guidance=self.case.guidance)
        return self.painter.generate(target, chosen, settings)
