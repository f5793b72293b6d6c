"""What tells apart the hooks of others on a model: their code, and what they carry."""

from __future__ import annotations

import enum
import functools
import logging
import pathlib
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from .private import changers

DEEP = 8  # how far is followed what a hook carries
PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, enum.Enum, pathlib.PurePath)
VALUES = (torch.Tensor, np.ndarray, np.generic, *PLAIN)
FIXED = (types.ModuleType, type, types.EllipsisType, logging.Logger)  # which compute what their names say
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def why_incomparable(model: torch.nn.Module) -> str | None:
    """Why what hooks make of a model cannot be compared; None if it can, or there are none.

    Examples
    --------
    >>> model.layers[0].register_forward_hook(Recorder(open("log")))  # doctest: +SKIP
    >>> why_incomparable(model)  # doctest: +SKIP
    "a hook on layers.0 carries what cannot be compared (TextIOWrapper)"
    """
    for name, hook in changers(model):
        try:
            hook_state(hook)
        except TypeError as error:
            return f"a hook on {name} carries what cannot be compared ({error})"
    return None


def hook_state(value: Any, deep: int = DEEP) -> Any:
    """A hook, or what one carries, as lists of values that can be hashed.

    The code of functions counts, and with what they were made: arguments of partials, defaults, closures, attributes of
    objects, and the globals that they read; of functions of installed packages their names, defaults and closures.

    Raises
    ------
    TypeError
        Names what cannot be compared.
    """
    if isinstance(value, VALUES):
        return value
    if isinstance(value, FIXED) or isinstance(getattr(value, "__self__", None), types.ModuleType):
        return f"{getattr(value, '__module__', None)} {getattr(value, '__qualname__', value)}"
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
        return value.__module__, value.__qualname__, value.__defaults__, value.__kwdefaults__, *_within(value)
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_names, value.co_consts
    if hasattr(value, "__wrapped__"):  # such as a function that remembers its results
        return (value.__wrapped__,)
    call = None if isinstance(value, torch.nn.Module) else getattr(value, "__call__", None)  # noqa: B004
    return (call,) if isinstance(call, types.MethodType) else None


def _within(function: types.FunctionType) -> Iterator[Any]:
    """The closure of a function, and where it is of no package its code and the globals that this reads."""
    yield [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]  # an empty one raises
    code = function.__code__
    if not code.co_filename.startswith(INSTALLED):
        yield code
        yield [function.__globals__.get(name) for name in code.co_names]
