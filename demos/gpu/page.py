"""Put the results of the scripts for a GPU together into one page; nothing is measured::

python -m mmaccel.demos.gpu.page --output docs/benchmarks/long/gpu diffusion.json kernel.json vlm.json image.json
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmaccel.bench import pages
from mmaccel.bench.benchmark import Row
from mmaccel.comparison import results
from mmaccel.errors import WeightsError
from mmaccel.kernels.bench.benchmark import public

INTRO = """
Full-size shapes with random weights, which cost what trained ones cost and say nothing of quality: that is what the
pages of the small trained models are about. Each method and the plain run took turns, all in bfloat16. Caches that
decide by how much a step changes find nothing to reuse in random weights, so that their rows show what asking costs.
Put together from the scripts of `demos/gpu` by `python -m mmaccel.demos.gpu.page`.

- **Steps**: half of the steps computed take {half} of the plain run's time on {shapes};
  what is not computed costs next to nothing.
- **Sparse attention** pays where attention is most of the time: at a tenth of the blocks
  {sparse}. At shorter sequences choosing the blocks costs more
  than it saves. At 30% dense attention ran on Wan and LTX, since the break-even was then measured at a shape that does
  not fill this GPU; that was changed after this measurement, and is not measured again yet.
- **Answers** begin {first} sooner with 15% of the visual tokens, and then come at {pace} tokens a second instead of
  {plain}, where the processor's launches set the pace: that was before steps of one token went straight to the model's
  own attention, and is not measured again yet.
- **Kernels** lose to torch's own most where a call is short ({short}): what a launch
  costs on the processor decides there.
"""
STEPS = ("shape", "steps", "method", "seconds", "plain", "speed-up", "share computed", "GiB more at the peak")
KERNELS = ("op", "case", "µs", "µs, torch", "speed-up", "share of the GPU's arithmetic", "µs, flex attention")
ANSWERS = ("method", "first token, ms", "plain", "speed-up", "tokens/s", "plain", "GiB at the peak", "plain")
PICTURES = ("model", "batch", "method", "speed-up", "ms a pass of 1 token", "of 16", "of 32", "of 64")


def page(result: dict[str, Any]) -> str:
    """The page of a result: a table for each kind of model."""
    kinds = {kind: [row for row in result["rows"] if row["modality"] == kind] for kind in _TABLES}
    kinds["kernels"] = public(kinds["kernels"])
    sections = {}
    for kind, rows in kinds.items():
        title, headings, line = _TABLES[kind]
        sections[title.format(**_limits(result["header"]))] = pages.markdown(headings, map(line, rows))
    return pages.page(result, "On a GPU", INTRO.format(**_facts(kinds)), sections)


def _limits(header: dict[str, Any]) -> dict[str, str]:
    """What a large matrix product and a large copy reached in the same run."""
    return {
        "arithmetic": f"{header['gigaflops_limit'] / 1000:.0f} TFLOP/s",
        "memory": f"{header['gigabytes_per_second_limit'] / 1000:.1f} TB/s",
    }


def _facts(kinds: dict[str, list[Row]]) -> dict[str, str]:
    half = halved(kinds["video"])
    shares = [row["wall_seconds"] / row["baseline_seconds"] for row in half]
    sparse = [row for row in kinds["video"] if row["method"] == "video.SparseAttention"]
    tenth = [row for row in sparse if row["settings"]["budget"] == 0.1]
    sooner, pace, plain = (
        [float(row[name]) for row in kinds["vlm"]]
        for name in ("speedup", "tokens_per_second", "baseline_tokens_per_second")
    )
    short = min(kinds["kernels"], key=lambda row: float(row["speedup"]))
    op = str(short["method"]).removeprefix("kernels.")
    return {
        "half": f"{min(shares):.0%} to {max(shares):.0%}",
        "shapes": ", ".join(map(shape, half)),
        "sparse": ", ".join(f"{row['speedup']:.2f}x on {shape(row)}" for row in tenth),
        "first": f"{min(sooner):.2f}x to {max(sooner):.2f}x",
        "pace": f"{min(pace):.0f} to {max(pace):.0f}",
        "plain": f"{max(plain):.0f}",
        "short": f"{op} in {1e6 * short['wall_seconds']:.0f} µs {short['speedup']:.2f}x",
    }


def halved(rows: list[Row]) -> list[Row]:
    """Those of each diffusion shape with half of the steps computed, and nothing of the others."""
    steps = [row for row in rows if row["method"] == "video.HeterogeneousSteps"]
    return [row for row in steps if row["settings"]["budget"] == 0.5 and row["settings"]["fraction"] is None]


def shape(row: Row) -> str:
    return str(row["model"]).split()[0]


def _gib(count: float | None) -> str:
    return "" if count is None else f"{count / 2**30:.1f}"


def _step_line(row: Row) -> list[str]:
    work = row["work_ratio"]
    return [
        shape(row),
        str(row["steps"]),
        results.called(row),
        f"{row['wall_seconds']:.2f}",
        f"{row['baseline_seconds']:.2f}",
        f"{row['speedup']:.2f}x",
        "" if work is None else f"{work:.0%}",
        _gib(max(0, row["peak_bytes"] - row["baseline_peak_bytes"])),
    ]


def _kernel_line(row: Row) -> list[str]:
    case = ", ".join([row["model"], *(f"{key} {value}" for key, value in row["settings"].items() if key != "cutover")])
    share, flex = row["gigaflops_share"], row.get("flex_attention_seconds")
    return [
        row["method"].removeprefix("kernels."),
        case,
        f"{1e6 * row['wall_seconds']:.0f}",
        f"{1e6 * row['baseline_seconds']:.0f}",
        f"{row['speedup']:.2f}x",
        "" if share is None else f"{share:.0%}",
        "" if flex is None else f"{1e6 * flex:.0f}",
    ]


def _answer_line(row: Row) -> list[str]:
    return [
        results.called(row),
        f"{1e3 * row['wall_seconds']:.0f}",
        f"{1e3 * row['baseline_seconds']:.0f}",
        f"{row['speedup']:.2f}x",
        f"{row['tokens_per_second']:.0f}",
        f"{row['baseline_tokens_per_second']:.0f}",
        _gib(row["peak_bytes"]),
        _gib(row["baseline_peak_bytes"]),
    ]


def _picture_line(row: Row) -> list[str]:
    cost, speedup = row["verify_cost"] or {}, row["speedup"]
    times = dict(zip(cost.get("buckets", ()), cost.get("times", ()), strict=True))
    passes = (f"{1e3 * times[width]:.1f}" if width in times else "" for width in (1, 16, 32, 64))
    method = results.called(row) if speedup else "a pass that verifies"
    return [row["model"], str(row["batch"]), method, f"{speedup:.2f}x" if speedup else "", *passes]


_TABLES = {
    "video": ("Video and image diffusion", STEPS, _step_line),
    "vlm": ("Answers about 32 frames, LLaVA-OneVision 7B, 15% of the visual tokens", ANSWERS, _answer_line),
    "image": ("Autoregressive images", PICTURES, _picture_line),
    "kernels": ("Kernels, where a matrix product reaches {arithmetic} and a copy {memory}", KERNELS, _kernel_line),
}


def joined(paths: Sequence[Path]) -> dict[str, Any]:
    """One result of several, which must be of one commit and machine.

    Raises
    ------
    WeightsError
        If one cannot be read, or is of another commit or machine.
    """
    parts = [results.load(path) for path in paths]
    header = dict(parts[0]["header"])
    for path, part in zip(paths, parts, strict=True):
        for name in ("commit", "machine"):
            if part["header"].get(name) != header.get(name):
                raise WeightsError(f"{path} is of another {name} than {paths[0]}: run all scripts on one")
        header = {**part["header"], **header}
    return {"header": header, "rows": [row for part in parts for row in part["rows"]]}


def main(argv: list[str] | None = None) -> None:
    parser = pages.output_parser(__doc__)
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="what the scripts printed")
    arguments = parser.parse_args(argv)
    pages.write(arguments.output, joined(arguments.results), page)


if __name__ == "__main__":
    main()
