"""What keeps keys and values for the cache among the methods of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..method import CanvasMethod
from .interval_cache import IntervalCache
from .kept_prefix import KeptPrefix
from .kept_window import KeptWindow
from .prefix_cache import PrefixCache
from .window_diffusion import WindowDiffusion


def keeping(
    methods: Sequence[CanvasMethod], reads_causally: bool, mask: Callable[[], int | None]
) -> KeptPrefix | KeptWindow | None:
    """What the cache among the methods keeps; `mask` gives the token of what is not filled yet."""
    for method in methods:
        if isinstance(method, PrefixCache):
            return KeptPrefix(method.refresh, reads_causally)
        if isinstance(method, IntervalCache):
            return KeptPrefix(method.text, reads_causally, method.prompt)
        if isinstance(method, WindowDiffusion):
            return KeptWindow(method.window, method.seen, method.refresh, mask)
    return None
