"""WindowDiffusion: a step computes the next masked tokens, and not the whole block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from ..method import CanvasMethod
from .kept_window import KeptWindow


@register("canvas")
@dataclass(frozen=True)
class WindowDiffusion(CanvasMethod):
    """Computes in most steps only the first masked tokens of a block, and those committed since the last whole pass.

    Lossy. They attend to kept keys and values of all that is decoded and of the first `seen` masked tokens; masked
    tokens behind those are left out. What is not computed cannot be committed before the next whole pass, unless
    the schedule wants more tokens than the window has. Made for long blocks (`block_length=` of the call); with blocks
    no longer than the window it is much as :class:`canvas.PrefixCache`. At a temperature above 0 all passes are whole:
    nothing can be drawn for what is not computed.

    Parameters
    ----------
    window : int
        Masked tokens that a step computes. Default 16, of the authors' code.
    seen : int
        Masked tokens that are attended to. Default 64, of the authors' code.
    refresh : int
        Steps from one whole pass to the next; 1 is plain. Default 32, of the authors' code.

    Raises
    ------
    SettingError
        If a setting is below 1, or `seen` below `window`.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.WindowDiffusion())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, block_length=128).texts  # doctest: +SKIP
    """

    window: int = 16
    seen: int = 64
    refresh: int = 32

    paper: ClassVar[str] = "Window-Diffusion: windowed token pruning and caching for diffusion language models, 2026"
    role: ClassVar[str] = "canvas cache"
    excludes: ClassVar[frozenset[str]] = frozenset({"canvas.FreeDave"})
    neutral: ClassVar[dict[str, Any]] = {"refresh": 1}
    engaging: ClassVar[dict[str, Any]] = {"window": 2, "seen": 4}
    advice: ClassVar[Advice] = Advice("long blocks that are filled from the left", "commits far ahead have to wait")

    def __post_init__(self) -> None:
        for name in ("window", "seen", "refresh"):
            self._require(is_count(getattr(self, name)), name, "a whole number of 1 or more")
        self._require(self.seen >= self.window, "seen", f"at least window, {self.window}")

    def keeper(self, grows: bool, mask: Callable[[], int | None]) -> KeptWindow:
        return KeptWindow(self.window, self.seen, self.refresh, mask)
