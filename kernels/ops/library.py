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
    return functools.partial(_call, getattr(torch.ops.mmaccel, name))


def fake_attention(q: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exps of any attention of queries `[B, Hq, M, D]`, without computing them."""
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)


def _call(op: Callable[..., Any], *given: Any) -> Any:
    """Call an op; where gradients are wanted, so that backward refuses: torch's own fallback leaves them out."""
    wants_gradient = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)
    return _WithoutGradient.apply(op, *given) if wants_gradient else op(*given)


class _WithoutGradient(torch.autograd.Function):
    """The results of an op, with an error in place of their gradient."""

    @staticmethod
    def forward(ctx: Any, op: Any, *given: Any) -> Any:
        ctx.name = op.__name__
        return op(*given)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            f"mmaccel.kernels.{ctx.name} has no gradient: take the plain model where gradients are wanted,"
            " or call within torch.no_grad()"
        )


def _run(name: str, first: torch.Tensor, *rest: Any) -> Any:
    return getattr(implementation(first.device), name)(first, *rest)
