"""The least that a pipeline does around any denoiser: a sampler's loop with guidance in two passes."""

from __future__ import annotations

from typing import Any

import diffusers
import torch

from mmaccel.stepping.tensors import map_tensors, tensors

from .models import build

STEPS = 8
TIMES = ("timestep", "timesteps", "t", "timestep_ratio", "vision_timesteps")
GUIDANCE = 3.0
STILL = 0.5  # share of the time, at which a run stands that is to repeat itself


class Sampling(diffusers.DiffusionPipeline):
    """A pipeline of one denoiser, whose other arguments are given.

    What goes into the denoiser is overwritten right afterwards: a method that keeps a reference would show.
    """

    def __init__(self, scheduler: Any, transformer: Any = None, unet: Any = None) -> None:
        super().__init__()
        self.register_modules(scheduler=scheduler, transformer=transformer, unet=unet)

    def __call__(self, inputs: dict[str, Any], steps: int = STEPS, still: bool = False) -> torch.Tensor:
        """The last sample; with `still` the last prediction, where neither sample nor time moves."""
        self.name = latents_name(inputs)
        self.scheduler.set_timesteps(steps)
        whole = _stacked(inputs[self.name])
        if not still and isinstance(self.unet, torch.nn.Module):
            whole = whole * self.scheduler.init_noise_sigma
        for t in self.scheduler.timesteps:
            at = torch.tensor(STILL * 1000) if still else t
            scaled = whole if still or not hasattr(self.scheduler, "scale_model_input") else self._scaled(whole, t)
            velocity = self._guided(scaled, inputs, at)
            part = tuple(slice(n) for n in velocity.shape)
            moved = self.scheduler.step(velocity, t, whole[part], return_dict=False)[0]
            if not still:
                whole = whole.clone()
                whole[part] = moved
        return velocity if still else whole

    def _scaled(self, whole: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.scheduler.scale_model_input(whole, t)

    def _guided(self, whole: torch.Tensor, inputs: dict[str, Any], t: torch.Tensor) -> torch.Tensor:
        prompt, other = (self._predict(whole, inputs, t, sign) for sign in (1, -1))
        return other + GUIDANCE * (prompt - other)

    def _predict(self, whole: torch.Tensor, inputs: dict[str, Any], t: torch.Tensor, sign: int) -> torch.Tensor:
        """One pass; the other branch has all conditions negated."""
        denoiser = self.unet if self.transformer is None else self.transformer
        given = {
            key: value if isinstance(value, dict) else map_tensors(lambda x: _signed(x, sign), value)
            for key, value in inputs.items()
        }
        values = iter(whole.unbind() if isinstance(inputs[self.name], list) else [whole])
        given[self.name] = map_tensors(lambda _: next(values).clone(), inputs[self.name])
        time = next(name for name in TIMES if name in given)
        given[time] = torch.full_like(given[time], float(t)) if isinstance(given[time], torch.Tensor) else t
        output = denoiser(**given)
        first = output if isinstance(output, torch.Tensor) else output[0]
        predicted = _stacked(first)
        part = tuple(slice(min(n, m)) for n, m in zip(predicted.shape, whole.shape, strict=True))
        predicted = predicted[part].clone()
        for x in (*tensors(given[self.name]), *tensors(first)):
            x.fill_(float("nan"))
        return predicted


def latents_name(inputs: dict[str, Any]) -> str:
    """The argument that is denoised: the first with numbers that can be."""
    return next(name for name, value in inputs.items() if any(x.is_floating_point() for x in tensors(value)))


def pipeline(name: str, scheduler: Any = None) -> tuple[Sampling, dict[str, Any]]:
    """A pipeline around a small model of a class, and the arguments that its call takes."""
    model, inputs = build(name)
    if is_unet(model):
        return Sampling(scheduler or diffusers.DDIMScheduler(clip_sample=False), unet=model), inputs
    return Sampling(scheduler or diffusers.FlowMatchEulerDiscreteScheduler(shift=3), transformer=model), inputs


def is_unet(model: torch.nn.Module) -> bool:
    """Whether a denoiser is a UNet, which noise-predicting samplers step."""
    return hasattr(model, "up_blocks")


def _signed(value: torch.Tensor, sign: int) -> torch.Tensor:
    """Noise with a sign; times, masks and places stay as they are."""
    return value * sign if value.is_floating_point() and bool((value < 0).any()) else value


def _stacked(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.stack(list(tensors(value)))
