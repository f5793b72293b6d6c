"""Which parts of its model a pipeline really computed in each step, watched from outside."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

import torch

# The first layer of each part: a part itself is called even by what then takes its output over from earlier.
PARTS = {"attn1.to_q": "self", "attn2.to_q": "cross", "ffn.net.0": "feed-forward"}


def transformer_parts(transformer: Any) -> dict[str, torch.nn.Module]:
    """The parts of each block of a diffusion transformer with `attn1`, `attn2` and `ffn`, such as Wan's."""
    return {
        f"{number} {label}": block.get_submodule(name)
        for number, block in enumerate(transformer.blocks, 1)
        for name, label in PARTS.items()
    }


def unet_parts(unet: Any) -> dict[str, torch.nn.Module]:
    """The residual blocks of a UNet, from the first on the way down to the last on the way up."""
    stages = {**{f"down {n}": s for n, s in enumerate(unet.down_blocks, 1)}, "middle": unet.mid_block}
    stages |= {f"up {n}": s for n, s in enumerate(unet.up_blocks, 1)}
    return {f"{name}.{n}": block.conv1 for name, stage in stages.items() for n, block in enumerate(stage.resnets, 1)}


class ModuleTrace:
    """Counts what goes into some modules, step by step; works with every method.

    Parameters
    ----------
    parts
        The modules, by name.

    Examples
    --------
    >>> with ModuleTrace(transformer_parts(pipe.transformer)) as trace:  # doctest: +SKIP
    ...     pipe("rocket moves up", callback_on_step_end=trace.step)
    >>> trace.table().shape  # rows of input by part and step  # doctest: +SKIP
    """

    def __init__(self, parts: dict[str, torch.nn.Module]) -> None:
        self.parts = list(parts.values())
        self._steps, self._now = list[list[int]](), [0] * len(self.parts)
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for row, module in enumerate(self.parts):
            self._hooks.callback(module.register_forward_pre_hook(self._counter(row), with_kwargs=True).remove)
        return self

    def __exit__(self, *_: Any) -> None:
        self._hooks.close()

    def step(self, pipe: Any, number: int, time: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """A step is over; for the pipeline's ``callback_on_step_end``."""
        self._steps.append(self._now)
        self._now = [0] * len(self.parts)
        return inputs

    def table(self) -> torch.Tensor:
        """Batch times tokens that each part was given, `[parts, steps]`; of maps of a UNet, batch times channels."""
        return torch.tensor(self._steps).T

    def _counter(self, row: int) -> Any:
        def count(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            hidden_states = given[0] if given else named["hidden_states"]
            self._now[row] += hidden_states.shape[0] * hidden_states.shape[1]

        return count
