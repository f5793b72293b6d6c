"""A model whose linear layers compute few rows by the fastest way of this CPU, in its own place or as a twin."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from mmaccel import private
from mmaccel.forwards import is_own
from mmaccel.kernels.skinny_linear import measure, skinny_linear, suits
from mmaccel.patching import Wrapped, wrap_forward

from .packed import twin_of, with_linears

_LOCK = threading.Lock()


class SkinnyLinear(nn.Linear):
    """A linear layer by :func:`~mmaccel.kernels.skinny_linear.skinny_linear`; it shares its weight with another."""

    stands_for = nn.Linear  # and is replaced as one of these in other twins

    def __init__(self, linear: nn.Linear) -> None:
        self.__dict__.update(vars(twin_of(linear)))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return skinny_linear(input, self.weight, self.bias)


def with_skinny_linears(module: nn.Module) -> nn.Module:
    """A twin of a module that shares everything with it, weights too; equal up to rounding.

    Examples
    --------
    >>> layer = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU())
    >>> with torch.no_grad():
    ...     torch.allclose(with_skinny_linears(layer)(torch.ones(2, 512)), layer(torch.ones(2, 512)), atol=1e-6)
    True
    """

    def twin(layer: nn.Linear) -> nn.Module:
        return SkinnyLinear(layer) if _runs_own(layer) and suits(layer.weight) else twin_of(layer)

    return with_linears(module, twin)


def skinny_linears(stack: ExitStack, module: nn.Module) -> None:
    """Let the linear layers of a module do so themselves, until `stack` closes.

    What is not known of this CPU yet is measured first, so that no pass which is timed takes that long.
    """
    with _LOCK:  # calls in two threads must not both take hold of a layer
        layers = _layers(module)
        measure({layer.in_features for layer in layers})
        for layer in layers:
            wrap_forward(stack, layer, functools.partial(_forward, layer))


def _forward(layer: nn.Linear, original: Callable[[torch.Tensor], torch.Tensor], input: torch.Tensor) -> torch.Tensor:
    return skinny_linear(input, layer.weight, layer.bias)


def _layers(module: nn.Module) -> list[nn.Linear]:
    """Those that nothing else has taken hold of, and whose weights can have a faster way."""
    compiled = [part for part in module.modules() if private.runs_compiled(part)]
    within = {layer for part in compiled for layer in part.modules()}  # each hold would compile them anew
    layers = [layer for layer in module.modules() if type(layer) is nn.Linear and layer not in within]
    free = [layer for layer in layers if not isinstance(vars(layer).get("forward"), Wrapped) and _runs_own(layer)]
    return [layer for layer in free if suits(layer.weight)]


def _runs_own(layer: nn.Module) -> bool:
    """Whether a layer runs as its class says, alone or by :func:`skinny_linears`."""
    forward = vars(layer).get("forward")
    if isinstance(forward, Wrapped) and getattr(forward.function, "func", None) is _forward:
        forward = forward.original
    return forward is None or is_own(layer, "forward", forward)


def is_plain_linear(module: Any) -> bool:
    """Whether a module is torch's own `Linear` with nothing hooked to it, so that its weight tells all that it does."""
    is_one = type(module) is nn.Linear and not private.is_hooked(module) and _runs_own(module)
    return is_one and private.is_plain(module.weight) and not module.weight.is_meta
