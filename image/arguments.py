"""Arguments that say how pictures are sampled, of one prompt and of many."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mmaccel.cli.arguments import COUNT, number, positive, seed, whole

if TYPE_CHECKING:
    from .generation import ImageSettings


def add_sampling(parser: Any) -> None:
    """Add the arguments that say how pictures are sampled."""
    parser.add_argument("--seed", type=seed, default=0, help="seed of the random numbers (default 0)")
    parser.add_argument(
        "--count", type=whole(1, COUNT), default=1, help=f"pictures of the prompt, 1 (default) to {COUNT}"
    )
    parser.add_argument("--guidance", type=number(), help="guidance scale (default: the model's own)")
    parser.add_argument("--temperature", type=positive, help="above 1 varies more (default: the model's own)")
    share = number("above 0 and at most 1", lambda value: 0 < value <= 1)
    codes = "sample from this many likeliest codes, 0 for all (default: the model's own)"
    parser.add_argument("--top-k", type=whole(0), help=codes)
    probability = "sample from the likeliest codes with this total probability (default: the model's own)"
    parser.add_argument("--top-p", type=share, help=probability)


def settings_of(arguments: argparse.Namespace) -> ImageSettings:
    """The settings that :func:`add_sampling` added."""
    from .generation import ImageSettings

    names = ("seed", "count", "guidance", "temperature", "top_k", "top_p")
    return ImageSettings(**{name: getattr(arguments, name) for name in names})
