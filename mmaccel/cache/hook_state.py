"""What tells apart the hooks of others on a model: their code, and what they carry."""

from __future__ import annotations

import enum
import functools
import logging
import pathlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from mmaccel import private

DEEP = 8  # how far is followed what a hook carries
PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, enum.Enum, pathlib.PurePath)
VALUES = (torch.Tensor, np.ndarray, *PLAIN)
# Globals that a function reads and that stay what they are.
FIXED = (types.ModuleType, type, types.BuiltinFunctionType, logging.Logger)


def why_incomparable(model: torch.nn.Module) -> str | None:
    """Why what hooks make of a model cannot be compared; None if it can, or there are none.

    Examples
    --------
    >>> model.layers[0].register_forward_hook(Recorder(open("log")))  # doctest: +SKIP
    >>> why_incomparable(model)  # doctest: +SKIP
    "a hook on layers.0 carries what cannot be compared (TextIOWrapper)"
    """
    for name, hook in private.changers(model):
        try:
            hook_state(hook)
        except TypeError as error:
            return f"a hook on {name} carries what cannot be compared ({error})"
    return None


def hook_state(value: Any, deep: int = DEEP) -> Any:
    """A hook, or what one carries, as lists of values that can be hashed.

    The code of functions counts, and with what they were made: arguments of partials, defaults, closures, attributes of
    objects, and the globals that they read.

    Raises
    ------
    TypeError
        Names what cannot be compared.
    """
    if isinstance(value, VALUES):
        return value
    parts = _parts(value)
    if parts is None or not deep:
        raise TypeError(type(value).__name__)
    return [hook_state(part, deep - 1) for part in parts]


def _parts(value: Any) -> Iterable[Any] | None:
    """What a value is made of; None if nobody knows."""
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, getattr(value.__self__, "__dict__", value.__self__)
    if isinstance(value, types.FunctionType):
        return value.__module__, value.__code__, value.__defaults__, value.__kwdefaults__, _outside(value)
    if isinstance(value, types.CodeType):
        return value.co_qualname, value.co_code, value.co_names, value.co_consts
    call = None if isinstance(value, torch.nn.Module) else getattr(value, "__call__", None)  # noqa: B004
    return (call,) if isinstance(call, types.MethodType) else None


def _outside(function: types.FunctionType) -> list[Any]:
    """What a function reads that is defined outside of it: its closure, and globals."""
    filled = (cell for cell in function.__closure__ or () if cell != types.CellType())  # an empty one raises
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    return [*(cell.cell_contents for cell in filled), *(value for value in named if not isinstance(value, FIXED))]
