"""Seeing the attention of one model instance, whichever processor makes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

Attend = Callable[..., torch.Tensor]


class Intercepted(TorchFunctionMode):
    """While entered, `scaled_dot_product_attention` goes through `attend(original, *args, **kwargs)`."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return self.attend(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def intercept(
    module: torch.nn.Module, attend: Attend, stack: ExitStack, before: Callable[..., None] | None = None
) -> None:
    """Route the attention calls within `module`'s forward through `attend`, until `stack` closes.

    Two hooks on the instance and torch's own function mode: no processor is replaced, no forward is copied, and
    other instances of the class, also in other threads, never notice. `before(module, args, kwargs)` is called
    first.
    """
    entered: list[Intercepted] = []

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if before is not None:
            before(module, args, kwargs)
        mode = Intercepted(attend)
        mode.__enter__()
        entered.append(mode)

    def leave(*_: Any) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    # also after an exception in the forward
    stack.callback(module.register_forward_hook(leave, always_call=True).remove)
    stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
