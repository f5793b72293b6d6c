"""Methods of a model that are wrapped for one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mmaccel.patching import wrap_method


def wrap_in_thread(stack: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put ``function(original, *args, **kwargs)`` in place of a method for calls of this thread, until `stack` closes.

    Calls of other threads get the method itself.
    """
    thread = threading.get_ident()

    def chosen(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        return function(original, *args, **kwargs)

    wrap_method(stack, owner, name, chosen)
