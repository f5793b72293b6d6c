"""Write the model card of a shipped model, with a sheet of samples, beside its weights."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any

import torch
from PIL import Image

from mmaccel.comparison.results import in_threads
from mmaccel.files import pictures
from mmaccel.zoo.vocabulary import facts_of


def run(main: Callable[[], None], description: str | None) -> None:
    """Write a card from the command line, which only tells what it does with ``--help``."""
    looks = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=description, formatter_class=looks).parse_args()
    main()


def write(
    folder: Path,
    text: str,
    parts: Sequence[torch.nn.Module],
    sheet: Image.Image,
    colors: int = 256,
    weights: str = "*.safetensors",
    **told: Any,
) -> None:
    """Write `samples.png` and `README.md`.

    Parameters
    ----------
    folder
        Of the model, with its `training.json`.
    text
        The card, to be filled with what the recipe noted there, the millions of parameters, the megabytes, the
        threads, and what is `told`, which goes before all these.
    parts
        The modules whose parameters are counted.
    sheet
        The samples, saved with so many `colors`.
    weights
        Which files in the folder are counted.
    """
    sheet.convert("P", palette=1, colors=colors).save(folder / "samples.png", optimize=True)
    counted = {
        "parameters": sum(map(millions, parts)),
        "megabytes": sum(file.stat().st_size for file in folder.rglob(weights)) / 1e6,
        "threads": in_threads(torch.get_num_threads()),
    }
    (folder / "README.md").write_text(text.format(**{**facts_of(folder), **counted, **told}))


def drawn(pipe: Any, prompts: Sequence[str]) -> tuple[Image.Image, float]:
    """A sheet of what a pipeline draws, one picture per prompt and none picked, and the median of their seconds."""
    cells, seconds = [], []
    for number, prompt in enumerate(prompts):
        began = time.perf_counter()
        picture = pipe(prompt, generator=torch.Generator().manual_seed(number)).images[0]
        seconds.append(time.perf_counter() - began)
        cells.append(pictures.headed(pictures.enlarged(picture), prompt))
    return pictures.sheet(cells, 4), median_high(seconds)


def millions(part: torch.nn.Module) -> float:
    """Its parameters."""
    return sum(parameter.numel() for parameter in part.parameters()) / 1e6


def in_words(folder: Path, *names: str) -> dict[str, str]:
    """Lists among these facts, as the card tells them."""
    noted = facts_of(folder)
    return {name: ", ".join(noted[name]) for name in names}
