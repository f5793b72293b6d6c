"""One lock for each model, for those that change it while they run."""

from __future__ import annotations

import threading
import weakref
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
