"""Denoisers that several devices run together: their tokens are split by diffusers' context parallelism, or weights."""

from __future__ import annotations

import torch
import torch.distributed

from mmaccel.errors import UnsupportedTargetError

from ..private import context_group, shared_groups


def refuse_split(denoisers: list[torch.nn.Module], method: str) -> None:
    """Refuse a method that looks at tokens between the layers, where each device has some of them.

    Raises
    ------
    UnsupportedTargetError
        If a denoiser's tokens are split.
    """
    for denoiser in denoisers:
        if context_group(denoiser) is not None:
            raise UnsupportedTargetError(
                f"{method} looks at tokens between the layers, and context parallelism has split those of"
                f" {type(denoiser).__name__} over devices: use video.HeterogeneousSteps or video.EasyCache, which"
                " choose whole steps"
            )


def agreed(denoiser: torch.nn.Module, decision: bool) -> bool:
    """Whether any of the devices that run a denoiser together decides so; else the decision itself.

    Where they share its tokens each would decide alike, but for rounding; where they share its weights alone, each may
    draw something else. If one computed a step and another did not, both would wait forever.
    """
    for group, device in shared_groups(denoiser).items():
        told = torch.tensor([decision], dtype=torch.uint8, device=device)
        torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX, group=group)
        decision = bool(told.item())
    return decision
