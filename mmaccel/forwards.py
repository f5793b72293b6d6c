"""Where a module keeps its forward: private names of accelerate and diffusers, whose hooks move it."""

from __future__ import annotations

from typing import Any

import torch

FORWARD = "forward"
BELOW_HOOK = "_old_forward"  # where accelerate keeps the forward below its hook
REGISTRY = "_diffusers_hook"  # where diffusers keeps the hooks of a module, and each of these the forward below it
# Of its group offloading with streams: behind the first pass they go, and with them what was put above.
PASSING_HOOKS = ("lazy_prefetch_group_offloading", "layer_execution_tracker")


def forward_place(module: torch.nn.Module) -> tuple[Any, str]:
    """The module or the hook that keeps its forward below all hooks that come and go, and under which name."""
    holder: Any = module
    for name, hook in reversed(diffusers_hooks(module)):
        if name not in PASSING_HOOKS:
            break
        holder = hook
    return holder, BELOW_HOOK if BELOW_HOOK in vars(holder) else FORWARD


def diffusers_hooks(owner: Any) -> list[tuple[str, Any]]:
    """The hooks of diffusers on a module by their names, the outermost last; each has the `forward` below it."""
    registry = vars(owner).get(REGISTRY)
    return [] if registry is None else list(zip(registry._hook_order, registry._fn_refs, strict=True))
