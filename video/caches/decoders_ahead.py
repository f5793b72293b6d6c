"""The decoder of a UNet for several steps at once, which share the features of one encoder pass."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from mmaccel.stepping.tensors import map_tensors, tensors

# What a ControlNet or an adapter adds to the features in each step: unknown before its step.
OF_THE_STEP = (
    "down_block_additional_residuals",
    "mid_block_additional_residual",
    "down_intrablock_additional_residuals",
)
ATTENTION, MASKS = "cross_attention_kwargs", "ip_adapter_masks"
UNUSED = ("sample", "timestep", *OF_THE_STEP)  # arguments that may differ from step to step


@dataclass
class DecodersAhead:
    """Outputs for the next steps of one guidance branch, by step, and the arguments that they were made with."""

    outputs: dict[int, Any] = field(default_factory=dict)
    given: list[torch.Tensor] = field(default_factory=list)

    def take(self, step: int, call: inspect.BoundArguments) -> Any:
        """The output of a step; None if it was not made, or with other arguments, as after a change of the prompt."""
        if not _alike(self.given, _lasting(call)):
            self.outputs.clear()
        return self.outputs.pop(step, None)

    def keep(self, first: int, output: Any, call: inspect.BoundArguments, count: int) -> None:
        """Keep what a batch of `count` steps from `first` on gave."""
        rows = call.arguments["sample"].shape[0]
        self.given = _lasting(call)
        for place in range(count):
            part = slice(place * rows, (place + 1) * rows)
            self.outputs[first + place] = map_tensors(itemgetter(part), output)


def fits(call: inspect.BoundArguments, time: torch.Tensor) -> bool:
    """Whether a call can be made for several steps: one with the sampler's time, and with nothing of its step alone."""
    given = call.arguments
    if not {"sample", "timestep"} <= given.keys() or any(given.get(name) is not None for name in OF_THE_STEP):
        return False
    return bool((torch.as_tensor(given["timestep"]).cpu() == time.cpu()).all())


def together(call: inspect.BoundArguments, times: torch.Tensor) -> dict[str, Any]:
    """The arguments of a call for all `times`, those of the first time first; its latents tell only the shape."""
    rows, count = call.arguments["sample"].shape[0], len(times)

    def repeated(value: torch.Tensor) -> torch.Tensor:
        """What has a row, or one of each frame, for each row of the latents."""
        return torch.cat([value] * count) if value.ndim and value.shape[0] % rows == 0 else value

    given = {name: map_tensors(repeated, value) for name, value in call.arguments.items()}
    if MASKS in (call.arguments.get(ATTENTION) or {}):  # one for each adapter, of all rows
        given[ATTENTION][MASKS] = call.arguments[ATTENTION][MASKS]
    given["timestep"] = times.to(call.arguments["sample"].device).repeat_interleave(rows)
    return given


def _lasting(call: inspect.BoundArguments) -> list[torch.Tensor]:
    """The tensors of a call that are the same in all steps."""
    return list(tensors([value for name, value in call.arguments.items() if name not in UNUSED]))


def _alike(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a is b or torch.equal(a, b) for a, b in pairs)
