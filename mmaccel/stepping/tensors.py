"""Nested tensors, as models take and return them: walking through them, and their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch


def tensors(value: Any, skip: type | None = None) -> Iterator[torch.Tensor]:
    """All tensors in a tensor, list, tuple or output dataclass of diffusers, in order; items of type `skip` left out.

    Examples
    --------
    >>> [x.item() for x in tensors([torch.tensor(1), (torch.tensor(2), None)])]
    [1, 2]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()), skip)
    elif isinstance(value, list | tuple):
        for item in value:
            if type(item) is not skip:
                yield from tensors(item, skip)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any, skip: type | None = None) -> Any:
    """The same structure with `function` of every tensor, which is called in the order of :func:`tensors`."""

    def mapped(item: Any) -> Any:
        return item if type(item) is skip else map_tensors(function, item, skip)

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):  # diffusers' outputs are ordered dictionaries, whose fields take no other names
        fields = {key: mapped(item) for key, item in value.items()}
        return fields if type(value) is dict else type(value)(**fields)
    if isinstance(value, list | tuple):
        return type(value)(mapped(item) for item in value)
    return value


def predicted(output: Any) -> list[torch.Tensor]:
    """The tensors that a model predicts, without keys and values that it hands back as well, in a plain dictionary."""
    return list(tensors(output, skip=dict))


def plus(value: torch.Tensor, base: torch.Tensor | None, sign: int = 1) -> torch.Tensor:
    """A new tensor ``value + sign * base`` where both have elements, `value` elsewhere.

    Transformers take conditions behind the latents (more channels or tokens), and some return a variance behind
    the prediction; what the two have in common always comes first.

    Examples
    --------
    >>> plus(torch.tensor([3.0, 3.0]), torch.tensor([1.0, 1.0, 9.0]), -1).tolist()
    [2.0, 2.0]
    """
    result = value.clone()
    if base is not None and base.ndim == value.ndim:
        shared = tuple(slice(min(n, m)) for n, m in zip(value.shape, base.shape, strict=True))
        result[shared] += sign * base[shared].to(value)
    return result


def relative_change(new: Iterable[torch.Tensor], old: Iterable[torch.Tensor]) -> float:
    """Mean absolute difference over mean absolute old value; infinite where the old value is 0 or of another shape.

    Examples
    --------
    >>> relative_change([torch.tensor([1.0, 3.0])], [torch.tensor([2.0, 2.0])])
    0.5
    """
    change = mean_change(new, old)
    size = mean_size(old)
    return change / size if size > 0 else float("inf")


def mean_change(new: Iterable[torch.Tensor], old: Iterable[torch.Tensor]) -> float:
    """Mean absolute difference over all elements of both lists; infinite if their shapes differ."""
    pairs = list(zip(new, old, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return mean_size([a.float() - b.float() for a, b in pairs])


def mean_size(values: Iterable[torch.Tensor]) -> float:
    """Mean absolute value over all elements of a list."""
    values = list(values)
    total = sum(float(x.float().abs().sum()) for x in values)
    return total / max(1, sum(x.numel() for x in values))


def count_bytes(*values: Any) -> int:
    """Bytes that the tensors in these structures take; also those in attributes of plain objects."""
    held = (value if isinstance(value, torch.Tensor | Mapping | list | tuple) else vars(value) for value in values)
    items = (item for value in held for item in tensors(value))
    return sum(item.numel() * item.element_size() for item in items)  # `nbytes` fails in compiled code


def change_of_shapes(before: list[torch.Size], after: list[torch.Size]) -> str:
    """How the latents of a pass differ from those of an earlier one: in their number, or else in a shape."""
    if len(before) != len(after):  # as lists do, with an entry for each row of a batch
        return f"{len(before)} latents became {len(after)}"
    old, new = next((old, new) for old, new in zip(before, after, strict=True) if old != new)
    return f"latents of {list(old)} became {list(new)}"
