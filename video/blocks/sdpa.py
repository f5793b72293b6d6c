"""Attention of models without transformers' table, such as those of diffusers: where `forward` calls it by its name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from mmaccel.patching import Before, wrap_forward


class AttentionMode(TorchFunctionMode):
    """While entered, `scaled_dot_product_attention` goes through `attend(original, *args, **kwargs)`."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            return self.attend(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def intercept_sdpa(
    stack: ExitStack, module: torch.nn.Module, attend: Callable[..., torch.Tensor], before: Before | None = None
) -> None:
    """Route the `scaled_dot_product_attention` within one module's forward through `attend`, until `stack` closes.

    For models without transformers' table, such as those of diffusers. A `forward` on the instance and torch's own
    function mode: no processor is replaced, and other instances of the class, also in other threads, never notice.
    `before(module, args, kwargs)` is called first.
    """

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(module, args, kwargs)
        with AttentionMode(attend):
            return original(*args, **kwargs)

    wrap_forward(stack, module, forward)
