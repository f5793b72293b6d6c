"""A model whose linear layers compute few rows by the fastest way of this CPU, in its own place or as a twin."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import nn

from mmaccel import private
from mmaccel.kernels.skinny_linear import measure, skinny_linear, suits
from mmaccel.patching import wrap_forward

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
    return with_linears(module, lambda layer: SkinnyLinear(layer) if _has_choice(layer) else twin_of(layer))


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
    compiled = [part for part in module.modules() if private.runs_compiled(part)]
    within = {layer for part in compiled for layer in part.modules()}  # each hold would compile them anew
    return [
        layer for layer in module.modules() if type(layer) is nn.Linear and layer not in within and _has_choice(layer)
    ]


def _has_choice(layer: nn.Linear) -> bool:
    """Whether nothing else has taken hold of a layer, and its weight can have a faster way."""
    return "forward" not in vars(layer) and suits(layer.weight)
