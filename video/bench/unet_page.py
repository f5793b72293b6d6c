"""The page of `mmaccel bench unet`: a table for each sampler, and who wins at about the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mmaccel.bench.benchmark import Row, by
from mmaccel.bench.pages import markdown
from mmaccel.bench.selection import CLOSE_ENOUGH
from mmaccel.bench.winners import ahead, who_wins
from mmaccel.comparison.results import called, cell

from .findings import figures
from .unet_cases import BUDGETS

FIGURES = figures("picture")

TITLE = "Pictures by a UNet"
INTRO = """
Measured by `mmaccel bench unet --full` on the shipped `tiny-unet` (diffusers' own `StableDiffusionPipeline`, float32,
guidance 3), with Stable Diffusion's noise levels. All entries alternate prompt by prompt in one process; speed-ups are
medians of the ratios of the time of a call, without the decoder. PSNR is to the picture that the plain pipeline makes
of the same prompt and noise, the worst is that of the worst prompt; *converged* is the PSNR to the picture that the
same sampler makes from the same noise with four times the steps. By DDIM sixteen prompts judge, by the others eight.
Nothing is tuned to prompts, and every method has its own defaults beside the settings that are told. *DeepCache* is the
package of its authors. The raw rows, with every prompt, are in [{json}]({json}).

{plot}
"""
LIMITS = """
- **HeterogeneousSteps** leaves out whole steps, with guidance, and forecasts what they would have given.
- **EncoderReuse** computes the decoder in every step, which is more than half of this UNet: there is no more to gain
  than that, and the report's share of the work says how much. `parallel=` draws the decoders of several steps as a
  batch, which pays on a GPU that a batch of one does not fill.
- **Converged** pictures of DDIM and PNDM begin at another noise level than those of fewer steps, as diffusers spaces
  their timesteps: at 996 with 200 steps, 981 with 50, 961 with 25 and 914 with 12. Ours and DeepCache begin where the
  plain run does.
- **DeepCache** computes the uppermost layers in every step, which cost little in a large UNet and much in a small one:
  on this one its speed-up is less than on Stable Diffusion's.
"""
HEADINGS = ("entry", "speed-up", "worst", "work", "PSNR", "worst", "converged", "worst")


def tables(found: list[Row]) -> dict[str, str]:
    """For each sampler who wins, and a table."""
    samplers = by("model", "{}", found).items()
    return {sampler_of(model): f"{said(group)}\n\n{_table(group)}".lstrip() for model, group in samplers}


def sampler_of(model: str) -> str:
    """The sampler of a row's model.

    Examples
    --------
    >>> sampler_of("tiny-unet, DDIM, 50 steps")
    'DDIM, 50 steps'
    """
    return model.partition(", ")[2]


def _table(group: list[Row]) -> str:
    return markdown(HEADINGS, map(_line, sorted(group, key=lambda row: row["speedup"] or 0.0)))


def _line(row: Row) -> list[str]:
    if row["speedup"] is None:
        return [called(row), str(row["label"]), *[""] * 6]
    names = ("quality", "psnr_worst", "psnr_converged", "psnr_converged_worst")
    times = cell(row["speedup"], ".2f", "x"), cell(row["speedup_worst"], ".2f", "x"), cell(row["work_ratio"], ".0%")
    return [called(row), *times, *(cell(row[name], ".1f") for name in names)]


def said(group: list[Row]) -> str:
    """Each budget of ours beside the best of the others that take about its time, or less."""
    return "\n".join(line for row in _ours(group) for line in _said(row, group))


def _said(row: Row, group: list[Row]) -> Iterator[str]:
    others = [[other for other in _as_fast(row, group) if other["kind"] == kind] for kind in ("rival", "simple")]
    for figure in FIGURES:
        named = replace(figure, name=f"at {row['speedup']:.2f}x, {figure.name}")
        yield from filter(None, [who_wins(named, row, others, _named)])


def _ours(group: list[Row]) -> list[Row]:
    return [row for row in group if row["method"] == "video.HeterogeneousSteps"]


def _as_fast(row: Row, group: list[Row]) -> list[Row]:
    return [other for other in group if CLOSE_ENOUGH * (other["speedup"] or 0.0) >= row["speedup"]]


def _named(row: Row) -> str:
    return f"`{called(row)}`" if "." in row["method"] else called(row)


def of_others(found: list[Row]) -> str:
    """Ours against fewer steps and DeepCache over the other samplers, in the index."""
    groups, lines = list(by("model", "{}", found).values())[1:], []
    for budget in BUDGETS:
        for method in ("fewer steps", "DeepCache"):
            ours = [(row, group) for group in groups for row in _ours(group) if row["settings"]["budget"] == budget]
            pairs = list(_pairs(ours, method))
            told = "; ".join(filter(None, (ahead(figure, pairs, _sampler) for figure in FIGURES)))
            where = f"By other samplers, {budget:.0%} of the steps against {method} in about the time"
            lines += [f"- {where}: {told}."] if told else []
    return "\n".join(lines)


def _pairs(groups: list[tuple[Row, list[Row]]], method: str) -> Iterator[tuple[Row, Row]]:
    for row, group in groups:
        best = FIGURES[0].best(other for other in _as_fast(row, group) if other["method"] == method)
        if best is not None:
            yield row, best


def _sampler(row: Row) -> str:
    return sampler_of(row["model"])
