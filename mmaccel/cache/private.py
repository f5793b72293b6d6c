"""Private names of torch that tell what the keys of a model depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def kept_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters of a module itself, the buffers that its `state_dict` has, and others that are no whole numbers."""
    passing = module._non_persistent_buffers_set  # such as rotary frequencies, or places and masks
    for key, value in {**module._parameters, **module._buffers}.items():
        if value is not None and (key not in passing or value.is_floating_point()):
            yield key, value


OWN_HOOKS = ("mmaccel.", "transformers.", "torch.")  # modules whose hooks change no keys


def changers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Parts of a model and the functions that are hooked to them, which may change what these compute.

    What is hooked to the model itself, or to what holds its layers, sees all of it and is taken to look only.
    """
    modules = dict(model.named_modules())
    layers = [name.split(".") for name in modules if name.rpartition(".")[2].isdigit()]
    holding = {".".join(path[:depth]) for path in layers for depth in range(len(path))}
    for name, module in modules.items():
        for hook in () if name in holding else (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            function = getattr(hook, "func", hook)  # of a partial
            if not (getattr(function, "__module__", None) or "").startswith(OWN_HOOKS):
                yield name, hook


def keeps_its_own_way(module: torch.nn.Module) -> bool:
    """Whether the `state_dict` of a module has more than its parameters and buffers."""
    kind, plain = type(module), torch.nn.Module
    return (
        kind._save_to_state_dict is not plain._save_to_state_dict or kind.get_extra_state is not plain.get_extra_state
    )
