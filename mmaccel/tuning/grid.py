"""Which settings of a method `tune` measures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import SettingError, UsageError, shown
from ..method import Method, plain_number
from ..plan import plan

Grid = Mapping[str, Iterable[Any]] | Iterable[Method]

# The default setting to vary is the first of these that a method is given. Shares of the work are tried at
# these values, or around a default that lies above them; everything else at multiples of its default.
KNOBS = (
    "budget",
    "keep",
    "tokens",
    "threshold",
    "window",
    "interval",
    "block",
    "spatial",
    "factor",
    "bound",
    "anchor",
    "drafts",
)
FIXED = ("steps", "fractions")  # lists of what is computed, for which a budget does not count
SHARES = {"budget": (0.2, 0.35, 0.5, 0.7), "keep": (0.1, 0.15, 0.25, 0.5)}
PARTS = (0.7, 0.85, 1, 1.2)
MULTIPLES = (0.5, 1, 2, 4)
WINDOWS = (8, 16, 32, 64)  # where the default is "auto"


def settings_of(target: Any, method: Method | type[Method], grid: Grid | None) -> list[Method]:
    """The methods to measure.

    Default values that the method or the target refuses are left out.

    Raises
    ------
    SettingError
        If the grid has no values, or there is no setting to vary.
    UnknownNameError
        If the grid names a setting that the method does not have.
    """
    base = method() if isinstance(method, type) else method
    if not isinstance(base, Method):
        raise UsageError(f"{shown(method)} is not a method: give one, and others by grid=[...]")
    if grid is None:
        return _fitting(target, base, *_default(base))
    if isinstance(grid, Mapping):
        found = [_changed(base, dict(zip(grid, values, strict=True))) for values in itertools.product(*_values(grid))]
    else:
        found = list(grid) if isinstance(grid, Iterable) else [grid]
        if not all(isinstance(each, Method) for each in found):
            raise SettingError(f"grid={found!r}: give methods, or values by setting as {{'budget': (0.25, 0.5)}}")
    if not found:
        raise SettingError(f"the grid is empty: give values, such as grid={{{_knob(base)!r}: (0.25, 0.5)}}")
    return found


def _values(grid: Mapping[str, Iterable[Any]]) -> list[list[Any]]:
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise SettingError(f"grid={{{name!r}: {values!r}}}: give several values, such as ({values!r},)")
    return [list(map(plain_number, values)) for values in grid.values()]


def _changed(base: Method, changes: dict[str, Any]) -> Method:
    return type(base).from_settings({**base.settings(), **changes})


def _knob(base: Method) -> str:
    """The setting that decides how much a method saves; several shares decide together."""
    given = base.settings()
    found = next((name for name in KNOBS if given.get(name) is not None), None)
    if found == "budget":
        return _overriding(base, given) or found
    if found is None or isinstance(given[found], tuple):
        name = found or next(iter(given), "name")
        raise SettingError(
            f"{base} has no setting that is known to decide by one number how much it saves: name one and its values,"
            f" grid={{{name!r}: (...)}}"
        )
    return found


def _overriding(base: Method, given: Mapping[str, Any]) -> str | None:
    """The number that decides in place of a budget: an interval, where it is optional and not only of full steps."""
    fixed = next((name for name in FIXED if given.get(name) is not None), None)
    if fixed:
        raise SettingError(
            f"{type(base).name}({fixed}=...) saves the same with every budget: name a setting and its values,"
            f" grid={{{fixed!r}: (...)}}, or leave {fixed} out"
        )
    is_chosen = given.get("interval") is not None and getattr(type(base), "interval", 0) is None
    return "interval" if is_chosen and not getattr(base, "chooses_tokens", False) else None


def _default(base: Method) -> tuple[str, Sequence[Any]]:
    """The main setting of a method, and values of it."""
    name = _knob(base)
    value = base.settings()[name]
    if name in SHARES:
        shares = SHARES[name]
        if min(shares) <= value <= max(shares):
            return name, shares
        return name, [float(f"{value * part:.3g}") for part in (PARTS if value > max(shares) else MULTIPLES)]
    if not isinstance(value, int | float):
        return name, (value, *WINDOWS)
    scaled = [value * factor for factor in MULTIPLES]
    return name, list(dict.fromkeys(max(1, int(each)) for each in scaled)) if isinstance(value, int) else scaled


def _fitting(target: Any, base: Method, name: str, values: Sequence[Any]) -> list[Method]:
    """The default values that the method and the target accept."""
    found, refused = [], None
    for value in values:
        try:
            each = _changed(base, {name: value})
            plan(target, each)
        except SettingError as error:
            refused = error
        else:
            found.append(each)
    if not found and refused is not None:
        raise refused
    return found
