"""Attention of models without transformers' table, such as those of diffusers: where `forward` calls it by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class AttentionMode(TorchFunctionMode):
    """While entered, `scaled_dot_product_attention` goes through `attend(original, *args, **kwargs)`.

    torch's own function mode: no processor is replaced, and other threads never notice.
    """

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            return self.attend(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
