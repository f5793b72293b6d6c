"""The page of `mmaccel bench unet`: a table for each sampler, and who wins at about the same time."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from mmaccel.bench.benchmark import by
from mmaccel.bench.pages import markdown
from mmaccel.bench.selection import CLOSE_ENOUGH
from mmaccel.bench.winners import Figure, who_wins
from mmaccel.comparison.results import called

Row = dict[str, Any]
FIGURES = tuple(
    Figure(name, itemgetter(column), unit=" dB")
    for name, column in (
        ("to the plain picture, mean", "quality"),
        ("to the plain picture, worst prompt", "psnr_worst"),
        ("to the converged picture, mean", "psnr_converged"),
        ("to the converged picture, worst prompt", "psnr_converged_worst"),
    )
)

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
    work = "" if row["work_ratio"] is None else f"{row['work_ratio']:.0%}"
    figures = ["" if row[name] is None else f"{row[name]:.1f}" for name in names]
    return [called(row), f"{row['speedup']:.2f}x", f"{row['speedup_worst']:.2f}x", work, *figures]


def said(group: list[Row]) -> str:
    """Each budget of ours beside the best of the others that take about its time, or less."""
    ours = [row for row in group if row["method"] == "video.HeterogeneousSteps"]
    return "\n\n".join(f"At {row['speedup']:.2f}x the speed:\n\n" + "\n".join(_said(row, group)) for row in ours)


def _said(row: Row, group: list[Row]) -> Iterator[str]:
    as_fast = [other for other in group if CLOSE_ENOUGH * (other["speedup"] or 0.0) >= row["speedup"]]
    others = [[other for other in as_fast if other["kind"] == kind] for kind in ("rival", "simple")]
    yield from filter(None, (who_wins(figure, row, others, _named) for figure in FIGURES))


def _named(row: Row) -> str:
    return f"`{called(row)}`" if "." in row["method"] else called(row)


def of_others(found: list[Row]) -> str:
    """The same by the other samplers, in the index."""
    groups = list(by("model", "{}", found).items())[1:]
    lines = [f"By {sampler_of(model)}:\n\n{said(group)}" for model, group in groups]
    return "\n\n".join(lines)
