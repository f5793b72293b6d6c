"""The table of what works on which denoiser of diffusers: every method is run on every class, in a sampler's loop.

    python -m mmaccel.demos.families.table

It writes `docs/families.json`, from which the site makes its page; takes about ten minutes on one core. Run it whenever
a class was added to `models.json`, or a method works on more. A test runs a part of it, and compares.
"""

from __future__ import annotations

from typing import Any

import diffusers
import torch

import mmaccel
from mmaccel import video
from mmaccel.adapter import find_adapter
from mmaccel.errors import MmaccelError
from mmaccel.method import Method
from mmaccel.testing.snapshot import snapshot
from mmaccel.video.families.families import find_family

from .models import rows
from .sampling import Sampling, pipeline
from .written import DOCS, write

TARGET = DOCS / "families.json"
WHOLE = {"HeterogeneousSteps": video.HeterogeneousSteps(0.5, warmup=1), "EasyCache": video.EasyCache(1e6, warmup=2)}
EXACT = (video.HeterogeneousSteps(1.0), video.EasyCache(0.0), video.BlockCache(0.0), video.TokenCache(1.0))
# At settings with which each skips something in so few steps.
METHODS: dict[str, Method] = {
    **WHOLE,
    "HeterogeneousSteps(fraction=...)": video.HeterogeneousSteps(0.6, fraction=0.3, interval=3),
    "BlockCache": video.BlockCache(1e6, warmup=1),
    "TeaCache": video.TeaCache(1e6),
    "TokenCache": video.TokenCache(0.6, warmup=1, cooldown=0),
    "TaylorSeer": video.TaylorSeer(interval=3, warmup=2),
    "FirstBlockCache": video.FirstBlockCache(1e6),
    "MagCache": video.MagCache(ratios=(1.0, 1.0), warmup=1),
    "PyramidAttentionBroadcast": video.PyramidAttentionBroadcast(timesteps=(0, 1000)),
    "FasterCache": video.FasterCache(timesteps=(-1, 1000)),
    "EncoderReuse": video.EncoderReuse(keys=(0, 10, 30)),
}


def main() -> None:
    diffusers.logging.set_verbosity_error()
    write(TARGET, rows(), tried)


def tried(name: str, methods: dict[str, Method] = METHODS, exact: tuple[Method, ...] = EXACT) -> dict[str, Any]:
    """What methods did on a small model of a class.

    Returns
    -------
    A name for users, the adapter's family, the share of the work that each method did, why others were refused or
    failed, whether exact settings gave the plain sample bit for bit, and whether nothing was left behind.
    """
    pipe, inputs = pipeline(name)
    plain, denoiser = pipe(inputs), pipe.unet if pipe.transformer is None else pipe.transformer
    before, family, done, refused = snapshot(pipe), find_family(denoiser), {}, {}
    for label, method in methods.items():
        try:
            done[label] = share_of_work(pipe, inputs, method, plain)
        except MmaccelError as error:
            refused[label] = str(error)
    is_exact = [same(pipe, inputs, method, plain) for method in exact]
    clean = snapshot(pipe) == before and torch.equal(pipe(inputs), plain)
    return {
        "name": name if family is None else family.name,
        "family": find_adapter(pipe).family,
        "work": done,
        "refused": refused,
        "exact": all(is_exact),
        "clean": clean,
    }


def share_of_work(pipe: Sampling, inputs: dict[str, Any], method: Method, plain: torch.Tensor) -> float | None:
    """The share of the work that a method did; None where it did all, or what came out is no sample."""
    with mmaccel.accelerate(pipe, method) as fast:
        out, report = fast(inputs), fast.report
    if not report.engaged or not bool(out.isfinite().all()) or torch.equal(out, plain):
        return None
    attention = report.details.get("attention")
    if attention:
        return round(sum(attention) / len(attention), 3)
    return round(report.forwards / report.plain_forwards, 3)


def same(pipe: Sampling, inputs: dict[str, Any], method: Method, plain: torch.Tensor) -> bool:
    """Whether a method at exact settings gives the plain sample bit for bit; a refusal does too."""
    try:
        with mmaccel.accelerate(pipe, method) as fast:
            return torch.equal(fast(inputs), plain)
    except MmaccelError:
        return True


def count_halved(found: dict[str, Any]) -> int:
    """Classes on which half the calls are saved, exactly where asked, and without a trace."""
    return sum(
        row["exact"] and row["clean"] and (row["work"].get("HeterogeneousSteps") or 1) <= 0.5 for row in found.values()
    )


if __name__ == "__main__":
    main()
