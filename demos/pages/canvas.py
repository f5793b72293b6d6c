"""Pictures of what a canvas commits when: words in a list, and codes in a picture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from PIL import Image

import mmaccel
from mmaccel import canvas, zoo
from mmaccel.canvas.arguments import ONE_BY_ONE
from mmaccel.canvas.method import MASKS, CommitRule
from mmaccel.canvas.outlooks.outlook import Outlook
from mmaccel.canvas.verifiers.free_dave import FreeDave
from mmaccel.canvas.verifiers.guided_commit import GuidedCommit
from mmaccel.demos.pages.figures import beside
from mmaccel.registry import methods

PROMPT = "big red heart on yellow"


def listed(method: Any) -> tuple[Image.Image, str]:
    """A list, each of its words on the colour of the step that committed it."""
    pipe, processor = zoo.load("tiny-canvas")
    pipe.set_progress_bar_config(disable=True)
    asked = zoo.questions("tiny-canvas", 1)[0]
    commits = canvas.Commits()
    with mmaccel.accelerate(pipe, method) as fast:
        fast(
            **processor(videos=[asked.frames], text=asked.question), threshold=ONE_BY_ONE, callback_on_step_end=commits
        )
        passes = fast.report.details["passes"]
    words = commits.words(pipe.tokenizer)
    return commits.picture(pipe.tokenizer), (
        f"{method} on tiny-canvas: {len(words)} tokens in {passes} passes of the model."
        " Tokens of one colour were committed in one step."
    )


def coded(method: Any) -> tuple[Image.Image, str]:
    """A picture beside the step that settled each of its codes."""
    pipe = zoo.load("tiny-amused")
    pipe.set_progress_bar_config(disable=True)
    masked: list[torch.Tensor] = []

    def note(step: int, timestep: Any, latents: torch.Tensor) -> None:
        masked.append(latents[0] == pipe.scheduler.config.mask_token_id)

    with mmaccel.accelerate(pipe, method) as fast:
        picture = fast(PROMPT, generator=torch.Generator().manual_seed(0), callback=note).images[0]
    settled = torch.stack(masked).sum(0) + 1
    return beside(picture, settled, "step that committed each code"), (
        f'{method} on tiny-amused, "{PROMPT}": codes committed in {len(settled.unique())} steps, of one'
        " colour together."
    )


def _jobs() -> dict[str, Callable[[], tuple[Image.Image, str]]]:
    """One for each method that decides what is committed, but for `GuidedCommit`, whose guide model is not shipped."""
    found: dict[str, Callable[[], tuple[Image.Image, str]]] = {}
    for name, cls in methods().items():
        if issubclass(cls, CommitRule | Outlook | FreeDave) and cls is not GuidedCommit:
            found[name] = partial(listed if MASKS in (cls.families or ()) else coded, cls())
    return found


JOBS = _jobs()
