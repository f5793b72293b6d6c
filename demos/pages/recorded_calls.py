"""What a function was called with, and what it returned, watched from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

Recorded = tuple[tuple[Any, ...], Any]  # arguments, those by name behind those by place; and the result


@contextmanager
def recorded(owner: Any, name: str) -> Iterator[list[Recorded]]:
    """Record each call of a function of a module or of a method of a class.

    Examples
    --------
    >>> import math
    >>> with recorded(math, "gcd") as calls:
    ...     _ = math.gcd(8, 12)
    >>> calls
    [((8, 12), 4)]
    """
    calls: list[Recorded] = []
    original = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        calls.append(((*arguments, *named.values()), result))
        return result

    with patch.object(owner, name, watched):
        yield calls
