"""Painter: a model that draws prompts, with its processor, and the settings of one request."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from mmaccel.adapter import find_adapter
from mmaccel.errors import SettingError
from mmaccel.machine import forked_rng
from mmaccel.patching import hook
from mmaccel.progress import looks
from mmaccel.session import Session

from .decoding.task import language_model


@dataclass
class ImageSettings:
    """Sampling settings of one request; None leaves the model's own default.

    Attributes
    ----------
    count
        Pictures per prompt.
    """

    seed: int = 0
    count: int = 1
    guidance: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        limits: dict[str, tuple[bool, str]] = {
            "count": (self.count >= 1, "at least 1"),
            "temperature": (self.temperature is None or self.temperature > 0, "above 0"),
            "top_k": (self.top_k is None or self.top_k >= 0, "at least 0, where 0 keeps all"),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1"),
        }
        for name, (holds, allowed) in limits.items():
            if not holds:
                raise SettingError(f"{name}={getattr(self, name)}: it must be {allowed}")

    def arguments(self) -> dict[str, Any]:
        """Arguments of `generate`."""
        given = {
            "guidance_scale": self.guidance,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }
        return {"num_return_sequences": self.count, **{k: v for k, v in given.items() if v is not None}}


class Painter(ABC):
    """A model with its processor. `target` is what is accelerated."""

    def __init__(self, name: str, target: Any, processor: Any) -> None:
        self.name, self.target, self.processor = name, target, processor

    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Width and height of its pictures."""

    @abstractmethod
    def inputs(self, prompts: list[str], settings: ImageSettings) -> dict[str, Any]:
        """Arguments of `generate`."""

    @abstractmethod
    def pictures(self, tokens: Any, inputs: dict[str, Any]) -> list[Image.Image]:
        """Decode what `generate` returned."""

    def generate(
        self,
        target: Any,
        prompts: list[str],
        settings: ImageSettings,
        label: str | None = None,
        progress: Callable[[int, int], Any] | None = None,
    ) -> Any:
        """Run a session or the plain model from the same seed; a progress bar where a label is given.

        `progress` is called in place of the bar, by the plain model after each of its passes.

        A session gets a generator of its own. The plain model can only sample from the global state, which
        is put back afterwards.
        """
        inputs = self.inputs(prompts, settings)
        if isinstance(target, Session):
            inputs["generator"] = torch.Generator(target.device).manual_seed(settings.seed)
            with progress_bar(label) as bar:
                return target.generate(**inputs, progress=progress or bar)
        adapter: Any = find_adapter(self.target)
        inputs.update(adapter.plain_arguments(inputs))
        with forked_rng(), counted(target, label, progress):
            torch.manual_seed(settings.seed)
            return target.generate(**inputs)

    def paint(
        self,
        target: Any,
        prompts: list[str],
        settings: ImageSettings,
        label: str | None = None,
        progress: Callable[[int, int], Any] | None = None,
    ) -> Painted:
        """Generate and decode, with the time of the tokens."""
        began = time.perf_counter()
        tokens = self.generate(target, prompts, settings, label, progress)
        seconds = time.perf_counter() - began
        with torch.no_grad():
            return Painted(self.pictures(tokens, self.inputs(prompts, settings)), tokens, seconds)


@dataclass
class Painted:
    """Pictures, their tokens, and seconds spent on these; decoding is not among them."""

    pictures: list[Image.Image]
    tokens: Any
    token_seconds: float


@contextmanager
def progress_bar(label: str | None) -> Any:
    """A callback for `generate(progress=...)`, drawn on standard error; None without a label."""
    if label is None:
        yield None
        return
    with tqdm(desc=label, unit="tokens", **looks()) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


@contextmanager
def counted(model: Any, label: str | None, progress: Callable[..., Any] | None = None) -> Any:
    """Show the forwards of a plain run, which has no callback of its own, or tell them to `progress`."""
    with progress_bar(label) as bar:
        update = progress or bar
        if update is None:
            yield
            return
        seen, vision = [0], getattr(model.config, "vision_config", None)
        total = getattr(vision, "num_image_tokens", None)

        def count(*_: Any) -> None:
            seen[0] += 1
            update(seen[0], total)

        with ExitStack() as stack:
            hook(stack, language_model(model), after=count)
            yield
