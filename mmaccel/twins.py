"""Twins of modules: shallow copies with hooks of their own, which sessions do not see."""

from __future__ import annotations

import copy

import torch

from . import private
from .patching import Wrapped

# The ends of the names of a module's dictionaries of hooks.
HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")


def has_twin(module: torch.nn.Module) -> bool:
    """Whether all parts of a module run as their classes say, but for what sessions changed: then so does a twin."""
    return all(_plain_forward(part) and not private.is_compiled(part) for part in module.modules())


def _plain_forward(module: torch.nn.Module) -> bool:
    value = vars(module).get("forward")
    while isinstance(value, Wrapped) and value.had:
        value = value.original
    return value is None or isinstance(value, Wrapped)


def twin_of(module: torch.nn.Module) -> torch.nn.Module:
    """A shallow copy of a module: it shares what the module holds, but has hooks of its own, and its plain methods."""
    twin = module.__new__(type(module))  # not by copy.copy, which a module with a parametrized weight refuses
    held = vars(twin)
    held.update(vars(module))
    for name, value in list(held.items()):
        if isinstance(value, Wrapped):
            while isinstance(value.original, Wrapped):
                value = value.original
            if value.had:
                held[name] = value.original
            else:
                del held[name]
        elif name.endswith(HOOKS):
            held[name] = copy.copy(value)
    return twin
