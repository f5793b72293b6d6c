"""Arguments for the length, the size and the sampling of clips, of one prompt and of many."""

from __future__ import annotations

import argparse
from typing import Any

from mmaccel.cli.arguments import FRAMES, SIDE, STEPS, number, seed, whole


def add_film(parser: Any) -> None:
    """Add the arguments of a clip that is written: beside those of :func:`add_clip` its seed, guidance and rate."""
    parser.add_argument("--seed", type=seed, default=0, help="seed of the random numbers (default 0)")
    add_clip(parser)
    parser.add_argument("--guidance", type=number(), help="guidance scale (default: the pipeline's own)")
    rate = number("from 0.01 to 1000", lambda rate: 0.01 <= rate <= 1000)  # what all formats can hold
    parser.add_argument("--rate", type=rate, help="frames a second of the file (default: those of the model)")


def add_clip(parser: Any) -> None:
    """Add the arguments for the length and the size of a clip."""
    for name, meaning, most in (
        ("steps", "denoising steps", STEPS),
        ("frames", "frames", FRAMES),
        ("height", "pixels", SIDE),
        ("width", "pixels", SIDE),
    ):
        parser.add_argument(f"--{name}", type=whole(1, most), help=f"{meaning} (default: the pipeline's own)")


def settings_of(arguments: argparse.Namespace, *more: str) -> Any:
    """The settings of a clip that fits into memory."""
    from . import generation

    names = ("steps", "guidance", "frames", "height", "width", *more)
    settings = generation.VideoSettings(**{name: getattr(arguments, name) for name in names})
    generation.check_memory(settings)
    return settings
