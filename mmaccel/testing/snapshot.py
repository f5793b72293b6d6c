"""What a method could have left behind on a target, as a value that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

# What Python adds to a class when its annotations are first read; the last two from 3.14 on.
ANNOTATIONS = ("__annotations__", "__annotations_cache__", "__annotate_func__")
SIMPLE = (bool, int, float, str, type(None))  # compared by value


def snapshot(target: Any) -> dict[str, Any]:
    """What a method could have left behind: attributes, weights, hooks and class attributes of every module.

    Weights and buffers are taken bit for bit and by identity, configurations with all that they say; other objects by
    identity, so that a replaced one shows. Not the values of tensors that a pipeline's scheduler makes anew in every
    run.
    """
    found: dict[str, Any] = {}
    classes: set[type] = set()
    for name, part in _parts(target):
        is_module = isinstance(part, torch.nn.Module)
        found[name] = {key: _value(value, is_module) for key, value in vars(part).items()}
        found[f"{name}:class"] = type(part)
        classes.update(type(part).__mro__)
    for cls in classes - {torch.nn.Module}:  # which torch changes itself when it compiles
        names = dict(zip(vars(cls), map(id, vars(cls).values()), strict=True))
        for key in ANNOTATIONS:
            names.pop(key, None)
        found[f"class {cls.__module__}.{cls.__qualname__}"] = names
    return found


def _parts(target: Any) -> Iterator[tuple[str, Any]]:
    yield "target", target
    if isinstance(target, torch.nn.Module):
        yield from target.named_modules()
    for name, part in getattr(target, "components", {}).items():  # of a pipeline
        if isinstance(part, torch.nn.Module):
            yield from part.named_modules(prefix=name)
        elif part is not None and hasattr(part, "__dict__"):
            yield name, part


def _value(value: Any, is_module: bool) -> Any:
    if isinstance(value, torch.Tensor):  # a module may renew one in each run, as Qwen's `rope_deltas`: same values
        return value.shape, value.dtype, _bits(value) if is_module else None
    if isinstance(value, list) and not is_module:  # what a multistep scheduler has of its last run
        return [_value(item, False) for item in value]
    if isinstance(value, dict):
        return {key: (id(item), _bits(item) if isinstance(item, torch.Tensor) else None) for key, item in value.items()}
    if isinstance(value, SIMPLE):
        return value
    if hasattr(value, "to_dict") and hasattr(value, "__dict__"):  # a configuration
        return id(value), {key: _value(item, False) for key, item in vars(value).items()}
    return id(value)


def _bits(tensor: torch.Tensor) -> bytes:
    """A digest of the bytes of a tensor."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(content.numpy().data, digest_size=16).digest()
