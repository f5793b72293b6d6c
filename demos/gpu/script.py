"""What the scripts for a GPU share: their arguments, and models with random weights."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every script takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda")
    return made


def parsed(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None, advice: str = "--device cpu --small"
) -> argparse.Namespace:
    """The arguments of a call; without a GPU, where one is asked for, the script ends with advice."""
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, f"there is no CUDA device here: try {advice}\n")
    return args


def random_model(make: Callable[[], Any], device: str) -> Any:
    """A model with random weights, made on its device, in bfloat16 on a GPU."""
    torch.set_default_dtype(torch.float32 if device == "cpu" else torch.bfloat16)
    try:
        with torch.device(device):
            return make().eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)
