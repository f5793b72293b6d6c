"""Compiled transformers: their calls can be followed from outside, but their inside is fixed."""

from __future__ import annotations

import torch

from mmaccel import private
from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import Wrapped

BLOCKS = "compile its blocks instead, with compile_repeated_blocks()"
AGAIN = "after accelerate(): remove() the session, and call accelerate() again"  # where a model was changed


def refuse_compiled(method: str, advice: str, *modules: torch.nn.Module) -> None:
    """Raise if a method would have to work inside compiled code.

    Parameters
    ----------
    method
        Its name, for the error.
    advice
        What to do instead.
    *modules
        Modules that the method works inside.

    Raises
    ------
    UnsupportedTargetError
        If any of them is compiled.
    """
    compiled = next((module for module in modules if private.runs_compiled(module)), None)
    if compiled is not None:
        raise UnsupportedTargetError(
            f"{method} changes what {type(compiled).__name__} does inside, and this one is compiled:"
            f" load it again without compile(), or {advice}"
        )


def refuse_compiled_later(*modules: torch.nn.Module) -> None:
    """Raise an `UnsupportedTargetError` if a module was compiled with what a session has put around its forward.

    In place, its `forward` alone, or in a wrapper, which no session begins with.
    """
    for module in modules:
        inside = getattr(module, "_orig_mod", module)
        is_later = private.is_compiled(module) and not isinstance(vars(module)[private.COMPILED_CALL], Wrapped)
        if inside is not module or is_later or private.is_forward_compiled(module):
            raise UnsupportedTargetError(
                f"{type(inside).__name__} was compiled {AGAIN}, so that only the model's own code is compiled"
            )
