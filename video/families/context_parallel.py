"""Denoisers whose tokens are split over several devices, by the context parallelism of diffusers."""

from __future__ import annotations

import torch
import torch.distributed

from mmaccel.errors import UnsupportedTargetError

from ..private import context_group


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
    """The decision of the first device, on all that share the denoiser's tokens; else the decision itself.

    Each would decide alike, but for rounding; if one computed a step and another did not, both would wait forever.
    """
    group = context_group(denoiser)
    if group is None:
        return decision
    told = torch.tensor([decision], dtype=torch.uint8, device=next(denoiser.parameters()).device)
    torch.distributed.broadcast(told, group=group, group_src=0)
    return bool(told.item())
