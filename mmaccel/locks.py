"""One lock for each model, for those that change it while they run."""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_LOCKS: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()


def lock_of(model: Any) -> threading.RLock:
    """The lock of those that take turns with a model, wherever they hold it.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1, 1)
    >>> lock_of(model) is lock_of(model)
    True
    """
    return _LOCKS.setdefault(model, threading.RLock())


def pass_lock(model: Any) -> AbstractContextManager[Any]:
    """What each of several threads runs a model in: its lock where it is off-loaded, and nothing elsewhere.

    accelerate takes the weights of a layer away after a pass, also from a thread that still computes with them.

    Examples
    --------
    >>> import torch
    >>> model, away = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta")
    >>> pass_lock(model) is lock_of(model), pass_lock(away) is lock_of(away)
    (False, True)
    """
    is_off_loaded = any(parameter.is_meta for parameter in model.parameters())  # as accelerate leaves them
    return lock_of(model) if is_off_loaded else nullcontext()
