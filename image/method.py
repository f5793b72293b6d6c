"""Base of the image methods."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Method
from mmaccel.session import Session

from .decoding.grid_decoder import GridDecoder
from .decoding.layout import Layout
from .decoding.task import ImageTask, Progress
from .families.adapter import ImageAdapter


@dataclass(frozen=True)
class ImageMethod(Method[Session[ImageAdapter]]):
    """A way to decode image tokens. All of them exclude each other: a picture is decoded once."""

    role: ClassVar[str] = "image decoding"

    def attach(self, session: Session[ImageAdapter], stack: ExitStack) -> None:
        session.adapter.attach(self, session, stack)

    @property
    def keeps_noise(self) -> bool:
        """Whether a seed gives the tokens that the model's own generate draws with it."""
        return False

    @abstractmethod
    def decode(
        self, task: ImageTask, generator: torch.Generator | None, progress: Progress | None, session: Session
    ) -> GridDecoder:
        """Decode a task; the returned decoder holds `tokens [batch, N]` and the statistics.

        The generator is None where a method that keeps the noise draws from the global state.
        """

    def require_fit(self, model: Any) -> None:
        """Refuse a model that it cannot decode."""

    def check_layout(self, layout: Layout) -> None:
        """Raise a `SettingError` if the settings do not fit the grid."""

    def is_neutral(self, layout: Layout) -> bool:
        """Whether the settings amount to plain decoding."""
        return False
