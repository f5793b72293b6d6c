"""What attention modules of transformers project: split into heads, or watched while a model runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mmaccel.patching import hook

NAMES = ("q_proj", "k_proj")


def split_heads(states: torch.Tensor, head_dim: int) -> torch.Tensor:
    """`[B, T, heads * head_dim]` as `[B, heads, T, head_dim]`, a view."""
    return states.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def watch(stack: ExitStack, module: Any, keep: Callable[[str, torch.Tensor], object], in_thread: bool = False) -> None:
    """Have `keep` called with the name and the output of each projection of queries and keys until `stack` closes."""

    def told(name: str, _module: Any, _args: Any, _kwargs: Any, output: torch.Tensor) -> None:
        keep(name, output.detach())

    for name in NAMES:
        hook(stack, getattr(module, name), after=functools.partial(told, name), in_thread=in_thread)


@contextmanager
def watched_projections(modules: Sequence[Any]) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Keep what the projections of queries and keys returned last in this thread, by their names for each module.

    The fast attention functions of transformers keep no probabilities. This only uses hooks on the
    projections of these instances, and removes them afterwards.

    Parameters
    ----------
    modules
        Modules with `q_proj` and `k_proj`.
    """
    states: list[dict[str, torch.Tensor]] = [{} for _ in modules]
    with ExitStack() as stack:
        for module, found in zip(modules, states, strict=True):
            watch(stack, module, found.__setitem__, in_thread=True)
        yield states
