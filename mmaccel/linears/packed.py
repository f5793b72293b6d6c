"""Matrix products on a CPU with weights that oneDNN has laid out beforehand; equal up to rounding.

torch hands float32 products to MKL, which uses at most half of a CPU not made by Intel, and less for few rows:
on an AMD EPYC, 512 by 2048 weights take 0.15 instead of 0.41 ms for 2 rows, 0.25 instead of 0.60 for 16 and
1.2 instead of 2.8 for 128. For that, memory holds a second copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mmaccel import private
from mmaccel.forwards import is_own
from mmaccel.patching import Wrapped


class Prepared:
    """A tensor that is derived from a module's weight: computed once, and again whenever the weight has changed.

    Changes within `weight.data` are not seen, as torch does not count them: a merge of an adapter comes first.
    """

    def __init__(self, module: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.module, self.make = module, make
        self._made: torch.Tensor | None = None
        self._of: torch.Tensor | None = None  # kept alive, so that no other weight can get its address
        self._version = 0

    @property
    def weight(self) -> torch.Tensor:
        """The module's present weight."""
        module: Any = self.module
        return module.weight

    def __call__(self) -> torch.Tensor:
        weight, of = self.weight, self._of
        version = 0 if weight.is_inference() else weight._version
        same = of is not None and of.data_ptr() == weight.data_ptr() and of.dtype == weight.dtype
        if self._made is None or not same or version != self._version:
            self._made, self._of, self._version = self.make(weight.detach()), weight.detach(), version
        return self._made


class PackedMatrix:
    """The weight of a module as a matrix `[O, I]`, packed for oneDNN.

    Without oneDNN, and for anything but float32 on a CPU without gradients or autocast, a plain product. That
    too computes the matrix only once, except with gradients or autocast.

    Parameters
    ----------
    module
        Owner of the weight, which is read at each call.
    view
        Turns the weight into the matrix; by default the weight already is one.
    """

    def __init__(self, module: nn.Module, view: Callable[[torch.Tensor], torch.Tensor] = lambda weight: weight) -> None:
        self.view = view
        self.prepared = Prepared(module, self._prepare)
        self.prepared()

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x [..., I]` times the transposed matrix, plus `bias [O]`."""
        weight = self.prepared.weight
        packs = private.can_pack(weight)
        wants_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
        if wants_gradient or torch.is_autocast_enabled("cpu") or packs != private.can_pack(x):
            return F.linear(x, self.view(weight), bias)
        return (private.onednn_linear if packs else F.linear)(x, self.prepared(), bias)

    def _prepare(self, weight: torch.Tensor) -> torch.Tensor:
        matrix = self.view(weight).contiguous()
        return private.pack_weight(matrix) if private.can_pack(matrix) else matrix


class PackedLinear(nn.Module):
    """A linear layer with a packed weight; the layer itself is left unchanged."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.matrix = PackedMatrix(linear)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    @property
    def weight(self) -> torch.Tensor:
        """That of the layer."""
        return self.matrix.prepared.weight

    @property
    def bias(self) -> torch.Tensor | None:
        """That of the layer."""
        module: Any = self.matrix.prepared.module
        return module.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.matrix(x, self.bias)


def with_packed_linears(module: nn.Module) -> nn.Module:
    """A twin of a module that shares everything with it but runs its linear layers packed.

    Layers that something is hooked to keep their hooks, and are not packed; nor are quantized ones, as of torchao.

    The module itself is not changed, and later changes of its weights are seen by the twin, but for those made within
    `weight.data`, which torch does not count.

    Examples
    --------
    >>> layer = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU())
    >>> with torch.no_grad():
    ...     torch.allclose(with_packed_linears(layer)(torch.ones(2, 64)), layer(torch.ones(2, 64)), atol=1e-6)
    True
    """

    def packed(layer: nn.Linear) -> nn.Module:
        fits = private.is_plain(layer.weight) and not private.is_hooked(layer)
        return PackedLinear(layer) if fits else twin_of(layer)

    return with_linears(module, packed)


def with_linears(module: nn.Module, replace: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """A twin of a module that shares everything with it but has others in place of its linear layers.

    Hooks that either gets later are its own, and what sessions changed of the module is not in the twin: they may run
    at once.
    """
    if isinstance(module, nn.Linear) and getattr(module, "stands_for", type(module)) is nn.Linear:
        return replace(module)
    if private.is_compiled(module):
        return module
    twin = twin_of(module)
    children = {name: child and with_linears(child, replace) for name, child in module._modules.items()}
    twin.__dict__["_modules"] = children
    return twin


# The ends of the names of a module's dictionaries of hooks.
HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")


def has_twin(module: torch.nn.Module) -> bool:
    """Whether all parts of a module run as their classes say, but for what sessions changed: then so does a twin."""
    return all(_plain_forward(part) and not private.is_compiled(part) for part in module.modules())


def _plain_forward(module: torch.nn.Module) -> bool:
    value = vars(module).get("forward")
    while isinstance(value, Wrapped) and value.had:
        value = value.original
    return value is None or isinstance(value, Wrapped) or is_own(module, "forward", value)


def twin_of(module: torch.nn.Module) -> torch.nn.Module:
    """A shallow copy of a module: it shares what the module holds, but has hooks of its own, and is otherwise plain.

    What a session put on the module, its methods and its attention, goes with that session.
    """
    twin = module.__new__(type(module))  # not by copy.copy, which a module with a parametrized weight refuses
    held = vars(twin)
    held.update(vars(module))
    for name, value in list(held.items()):
        if isinstance(value, Wrapped):
            while isinstance(value, Wrapped):
                value = value.original
            held[name] = value
        if is_own(module, name, value):
            del held[name]
        elif name.endswith(HOOKS):
            held[name] = copy.copy(value)
        elif name == "config":
            held[name] = private.plain_config(value)
    return twin
