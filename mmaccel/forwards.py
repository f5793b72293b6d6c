"""Where a module keeps its forward: private names of accelerate and diffusers, whose hooks move it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from . import private

FORWARD = "forward"
BELOW_HOOK = "_old_forward"  # where accelerate keeps the forward below its hook
BELOW_ANSWER = "original_forward"  # where a hook of diffusers keeps it that answers itself, as its caches do
REGISTRY = "_diffusers_hook"  # where diffusers keeps the hooks of a module, and each of these the forward below it
# Of its group offloading with streams: behind the first pass they go, and with them what was put above.
PASSING_HOOKS = ("lazy_prefetch_group_offloading", "layer_execution_tracker")


def forward_place(module: torch.nn.Module) -> tuple[Any, str]:
    """The module or the hook that keeps its forward below all hooks that come and go, and under which name.

    Where a forward was compiled together with its hook, what is below that is a part of the compiled code.
    """
    holder: Any = module
    for name, hook in reversed(diffusers_hooks(module).items()):
        if name not in PASSING_HOOKS:
            break
        holder = hook.fn_ref
    is_below = BELOW_HOOK in vars(holder) and not private.is_forward_compiled(holder)
    return holder, BELOW_HOOK if is_below else FORWARD


def forward_places(owner: Any) -> Iterator[tuple[Any, str]]:
    """All places below hooks where a module's forward may be."""
    yield owner, BELOW_HOOK
    for hook in diffusers_hooks(owner).values():
        yield hook.fn_ref, FORWARD
        yield hook.fn_ref, BELOW_ANSWER


def is_own(module: Any, name: str, value: Any) -> bool:
    """Whether what an attribute holds is the method of the class, as in copies of what a session had wrapped."""
    own = getattr(type(module), name, None)
    return own is not None and getattr(value, "__self__", None) is module and getattr(value, "__func__", None) is own


def diffusers_hooks(owner: Any) -> dict[str, Any]:
    """The hooks of diffusers on a module by their names, the outermost last; each refers to the `forward` below it."""
    registry = vars(owner).get(REGISTRY)
    return {} if registry is None else registry.hooks
