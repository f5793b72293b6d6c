"""`mmaccel bench unet`: what methods for UNets keep of the plain pipeline's pictures, and the time they take.

All entries alternate prompt by prompt beside the plain pipeline, by Stable Diffusion's samplers; nothing is tuned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from mmaccel import zoo
from mmaccel.bench.benchmark import Benchmark, Row, Section, by
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload

from .. import quality
from . import unet_page as page
from .packages import missing_row
from .unet_cases import DEFAULT, MODEL, PACKAGE, SAMPLERS, Sampler, cases, is_missing

PROMPTS, OTHERS, FEW = 16, 8, 2  # that judge, by other samplers than the default one, and at short length
METRIC = "PSNR in dB to the picture of the plain pipeline, mean over prompts"


class Drawing(Workload):
    """Latents of each prompt; a seed is the number of a prompt, and of its noise."""

    unit = "steps"

    def __init__(self, pipe: Any, prompts: list[str], sampler: Sampler) -> None:
        self.target, self.prompts, self.sampler = sampler.on(pipe), prompts, sampler
        self.finest: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def run(self, target: Any, seed: int, fewer: int | None = None) -> tuple[int, torch.Tensor]:
        call = {"num_inference_steps": fewer or self.sampler.steps, "output_type": "latent"}
        generator = torch.Generator().manual_seed(seed)
        return seed, target(self.prompts[seed], **call, generator=generator).images

    def judge(self, plain: tuple[int, torch.Tensor], other: tuple[int, torch.Tensor]) -> dict[str, Any]:
        picture = self.picture(other[1])
        return {
            "psnr": self.psnr(self.picture(plain[1]), picture),
            "psnr_converged": self.psnr(self.converged(other[0]), picture),
        }

    def converged(self, seed: int) -> torch.Tensor:
        """The picture of a seed with so many steps that more change little."""
        if seed not in self.finest:
            self.finest[seed] = self.picture(self.run(self.target, seed, self.sampler.finest)[1])
        return self.finest[seed]

    @torch.no_grad()
    def picture(self, latents: torch.Tensor) -> torch.Tensor:
        """The decoded picture `[1, 3, H, W]` in [0, 1]."""
        vae = self.target.vae
        decoded: torch.Tensor = vae.decode(latents / vae.config.scaling_factor).sample
        return (decoded / 2 + 0.5).clamp(0, 1)

    @staticmethod
    def psnr(reference: torch.Tensor, picture: torch.Tensor) -> float:
        """In dB; 100 where they are equal."""
        return min(100.0, quality.tensor_psnr(reference, picture))


def parts(full: bool = False) -> dict[str, Callable[[], Iterable[Row]]]:
    """What is measured, by sampler: all entries with Stable Diffusion's DDIM, the main ones with others."""
    pipe = functools.cache(functools.partial(zoo.load, MODEL))
    prompts = zoo.prompts(MODEL, PROMPTS if full else FEW, seed=3)
    chosen = SAMPLERS if full else SAMPLERS[:1]

    def judged(sampler: Sampler) -> Iterator[Row]:
        return rows(pipe(), prompts if sampler == DEFAULT else prompts[:OTHERS], sampler)

    return {str(sampler): functools.partial(judged, sampler) for sampler in chosen}


def rows(pipe: Any, prompts: list[str], sampler: Sampler) -> Iterator[Row]:
    """The rows of one sampler."""
    drawing = Drawing(pipe, prompts, sampler)
    plain, made = Entry(PLAIN, PLAIN), list(cases(drawing.target, sampler))
    found = [plain, *(entry for entry in made if not is_missing(entry))]
    Runner(drawing, found, range(len(prompts)), title=str(sampler)).run()
    yield from (_row(drawing, entry, plain) for entry in found)
    for entry in filter(is_missing, made):
        about = {"model": _model(drawing), "method": entry.label, "settings": entry.columns, "kind": entry.kind}
        yield missing_row(PACKAGE, **about)


def _row(drawing: Drawing, entry: Entry, plain: Entry) -> Row:
    figures = list(entry.metrics.values())
    psnr, converged = ([each[name] for each in figures] for name in ("psnr", "psnr_converged"))
    of_package = {"method": entry.label, "settings": entry.columns}  # which has no plan
    identity = entry.identity(drawing.unit) if entry.setup is None else of_package
    return results.row(
        modality="video",
        model=_model(drawing),
        **{**identity, "exact": entry is plain},
        kind=entry.kind,
        seeds=list(range(len(figures))),
        **entry.timing(plain),
        **entry.work(),
        speedup_worst=min(entry.ratios(plain)),
        quality_metric=METRIC,
        quality=None if entry is plain else sum(psnr) / len(psnr),
        psnr_worst=None if entry is plain else min(psnr),
        psnr_converged=sum(converged) / len(converged),
        psnr_converged_worst=min(converged),
        samples=[{**each, "seconds": seconds} for each, seconds in zip(figures, entry.seconds, strict=True)],
    )


def _model(drawing: Drawing) -> str:
    return f"{MODEL}, {drawing.sampler}"


SECTION = Section(
    lambda found: by("model", "{}", [row for row in found if row["model"] == f"{MODEL}, {DEFAULT}"]),
    "fewer steps.",
    plot="mean PSNR to the plain picture against time",
    quality="PSNR to the plain picture, dB",
    form=".1f",
    figures=page.FIGURES,
    said=page.said,
    more=page.of_others,
)
BENCHMARK = Benchmark("unet", page.TITLE, parts, SECTION, page.INTRO, page.tables, page.LIMITS)
