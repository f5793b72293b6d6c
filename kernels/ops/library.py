"""Registration of the ops with torch, so that `torch.compile` and fake tensors know them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .dispatch import implementation

LIBRARY = torch.library.Library("mmaccel", "DEF")


def define(name: str, schema: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """Define ``mmaccel::name`` and return the callable; every backend module holds a function `name`.

    Parameters
    ----------
    schema
        Arguments and results in torch's own notation; the first argument is a tensor.
    fake
        Shapes and dtypes of the results, without computing them.
    """
    LIBRARY.define(f"{name}{schema}")
    LIBRARY.impl(name, functools.partial(_run, name), "CompositeExplicitAutograd")
    torch.library.register_fake(f"mmaccel::{name}", fake, lib=LIBRARY)
    found: Any = getattr(torch.ops.mmaccel, name)
    return found


def fake_attention(q: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exps of any attention of queries `[B, Hq, M, D]`, without computing them."""
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)


def _run(name: str, first: torch.Tensor, *rest: Any) -> Any:
    return getattr(implementation(first.device), name)(first, *rest)
