"""Run the encoder of a UNet in a few key steps only."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Advice, is_count, is_number
from mmaccel.patching import wrap_forward
from mmaccel.registry import register
from mmaccel.stepping.reuse import BranchState
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import map_tensors, tensors

from ..families.adapter import UNETS, DiffusionTransformerAdapter, PipelineSession
from ..families.compiled import BLOCKS, refuse_compiled
from ..families.families import bound
from ..steps import Forward
from .decoders_ahead import DecodersAhead, fits, together
from .step_cache import CacheStepper, StepCache

STEPS = 50  # that the key steps are given for
HALF = 0.5  # of the time, from which on the authors add noise

EXAMPLE = """import mmaccel
from mmaccel import video, zoo

pipe = zoo.load("tiny-unet")
with mmaccel.accelerate(pipe, {method}) as fast:
    picture = fast("big rocket on blue", num_inference_steps=50).images[0]
    print(fast.report)"""


@register("video")
@dataclass(frozen=True)
class EncoderReuse(StepCache):
    """In a UNet, the features of the encoder are kept between key steps, and only the decoder runs in every step.

    For pipelines with a UNet, such as Stable Diffusion and SDXL. The decoder sees every step's time; the encoder's
    features, with the middle block's, change slowest in the middle of the run. The decoder needs them and the time of
    its step, but not the latents, so that it can run for several reused steps at once. The work in the report is
    counted in parameters that ran. Lossy.

    Parameters
    ----------
    keys
        Steps that run the encoder, of a run of 50 steps; stretched to the steps of other runs. None runs it in every
        step, which is exact without `prior_noise`. Default (0, 1, 2, 3, 5, 10, 15, 25, 35), as in the paper.
    warmup
        First steps that always run it, at least 1; default 1.
    cooldown
        Last steps that always run it; default 0.
    parallel
        Most reused steps whose decoders run as one batch; default 1. Each more takes the memory of one more picture.
        Calls with a ControlNet or an adapter, which adds to the features in each step, or with perturbed attention in
        the decoder (PAG) are made one by one.
    prior_noise
        Share of the noise that a run began with, of variance 1, that is added to the latents before each step of its
        second half, against lost texture: 0.003 in the paper. Default 0; the benchmark of UNets has what it is worth.
        Runs that begin with a picture, such as image-to-image, get none.

    Raises
    ------
    SettingError
        If a setting is outside its range.
    UnsupportedTargetError
        If the pipeline has no UNet, or one whose blocks are no modules of their own.

    Examples
    --------
    >>> [step for step in range(20) if EncoderReuse().is_key(step, 20)]
    [0, 1, 2, 4, 6, 10, 14]
    """

    paper = "Faster Diffusion: Rethinking the Role of UNet Encoder in Diffusion Models, 2023"
    advice: ClassVar[Advice] = Advice(
        "Pipelines with a UNet, such as Stable Diffusion and SDXL, with 20 steps or more.",
        "Of a trained UNet it kept less than fewer steps in the same time: see the benchmark of UNets.",
        example=EXAMPLE,
    )
    families = UNETS
    neutral = {"keys": None, "prior_noise": 0.0}
    engaging = {"keys": (0, 10, 30)}

    keys: tuple[int, ...] | None = (0, 1, 2, 3, 5, 10, 15, 25, 35)
    warmup: int = 1
    cooldown: int = 0
    parallel: int = 1
    prior_noise: float = 0.0

    def __post_init__(self) -> None:
        self._check_steps()
        self._require(is_count(self.parallel), "parallel", "an integer of at least 1")
        self._require(is_number(self.prior_noise, 0, 1), "prior_noise", "a number from 0 to 1")
        allowed = f"None or steps from 0 to {STEPS - 1}"
        self._check_list("keys", allowed, lambda key: is_count(key, 0, STEPS - 1), kind=int)

    def is_key(self, step: int, steps: int) -> bool:
        """Whether a step of a run of `steps` runs the encoder."""
        return self.keys is None or any(round(key * steps / STEPS) == step for key in self.keys)

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        super().check(adapter)
        for unet in adapter.denoisers():
            if any(isinstance(part, torch.nn.ModuleList) for part in _encoder(unet)):
                raise UnsupportedTargetError(
                    f"{self.name} keeps what the blocks of an encoder return, and {type(unet).__name__} calls the"
                    " layers within its blocks itself: use video.HeterogeneousSteps"
                )
        refuse_compiled(self.name, BLOCKS, *adapter.denoisers())

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        return _Stepper(session, run, self)


@dataclass
class _Branch(BranchState):
    """What one guidance branch remembers: the output of every part of the encoder, and those of coming steps."""

    outputs: dict[int, Any] = field(default_factory=dict)
    ahead: DecodersAhead = field(default_factory=DecodersAhead)


class _Stepper(CacheStepper):
    branch_state = _Branch

    def __init__(self, session: PipelineSession, run: SamplerRun, method: EncoderReuse) -> None:
        super().__init__(session, run, method)
        self.copies = 0  # of the kept features that a pass takes; 0 where the encoder runs
        self.singly = False  # whether a call was made for one step only that was to be made for several
        adapter: DiffusionTransformerAdapter = session.adapter
        for unet in [] if method.exact else adapter.denoisers():
            for index, part in enumerate(_encoder(unet)):
                wrap_forward(self.stack, part, functools.partial(self.part, index))

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        cache, run = self.cache, self.run
        if cache.leads:
            cache.reuse = cache.may_reuse and not self.method.is_key(run.step, run.steps)
        if cache.skips:
            skipped = sum(_size(part) for part in _encoder(denoiser))
            return self._decoded(denoiser, forward, bound(denoiser, args, kwargs)), 1 - skipped / _size(denoiser)
        self.copies = 0
        output = forward(*args, **kwargs)
        cache.computed()
        cache.state.ahead = DecodersAhead()
        return output, 1.0

    def _decoded(self, denoiser: torch.nn.Module, forward: Forward, call: inspect.BoundArguments) -> Any:
        """The output of a reused step, made with those of the next ones where they may run together."""
        ahead, step = self.cache.state.ahead, self.run.step
        output = ahead.take(step, call)
        if output is not None:
            return output
        times = self.session.target.scheduler.timesteps[step : step + self._coming()]
        if len(times) < 2 or not fits(call, times[0]) or self._is_perturbed(denoiser):
            self.copies = 1
            self.singly |= len(times) > 1
            return forward(*call.args, **call.kwargs)
        self.copies = len(times)
        ahead.keep(step, forward(**together(call, times)), call, self.copies)
        return ahead.take(step, call)

    def _is_perturbed(self, denoiser: torch.nn.Module) -> bool:
        """Whether attention in the decoder is perturbed for guidance (PAG): it takes a batch for that of one step.

        Another pipeline of the same UNet may perturb it too, by processors of diffusers' own.
        """
        own = {n for n, one in getattr(denoiser, "attn_processors", {}).items() if "PAG" in type(one).__name__}
        return any("up_blocks" in name for name in own.union(getattr(self.session.target, "pag_attn_processors", ())))

    def _coming(self) -> int:
        """Reused steps in a row from this one on, at most as many as may run together."""
        run, method = self.run, self.method
        end = run.steps - method.cooldown
        key = next((step for step in range(run.step, end) if method.is_key(step, run.steps)), end)
        return int(min(key - run.step, method.parallel))

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        result, run, share = make(output, sample), self.run, self.method.prior_noise
        if share and run.step == 0 <= run.branch:  # and not of another UNet, that the sampler steps too
            run.began = sample / getattr(self.session.target.scheduler, "init_noise_sigma", 1.0)
        began, following = run.began, run.step + 1
        if began is None or began.shape != sample.shape or following == run.steps:
            return result
        if self._is_late(following):
            next(tensors(result)).add_(began, alpha=share)
            self.report.engaged = True  # also where the encoder runs in every step
        return result

    def _is_late(self, step: int) -> bool:
        """Whether it is in the second half of the time; of the steps, where times are logarithms of the noise."""
        levels, steps = self.run.levels, self.run.steps
        return step >= steps / 2 if levels[0] < HALF else levels[step] < HALF

    def part(self, index: int, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """One part of the encoder. Features are copied, because FreeU and adapters change them in place."""
        outputs = self.cache.state.outputs
        if self.copies:
            return _copied(outputs[index], self.copies)
        output = forward(*args, **kwargs)
        outputs[index] = _copied(output)
        return output

    def held(self) -> list[Any]:
        noise, states = [] if self.run.began is None else [self.run.began], self.cache.states.values()
        features = {id(x): x for x in tensors([state.outputs for state in states])}
        return [features, *noise, *(state.ahead.outputs for state in states)]

    def finish(self) -> None:
        super().finish()
        if self.singly:
            self.warn(
                "decoders ran one by one: this call adds to the features in each step, perturbs attention in the"
                " decoder, or has times of its own"
            )
        if self.method.prior_noise and self.run.began is None:
            self.warn("no prior_noise was added: this run began with a picture, and not with noise")

    def advice(self) -> str:
        return "every step of this run was a key step: set fewer keys or more steps"


def _copied(features: Any, count: int = 1) -> Any:
    """The features with each tensor `count` times in a row; a tensor that is in two places stays one.

    A block returns its last features twice, of which a T2I-Adapter changes one in place and so both.
    """
    copies: dict[int, torch.Tensor] = {}

    def copied(x: torch.Tensor) -> torch.Tensor:
        if id(x) not in copies:
            copies[id(x)] = torch.cat([x] * count)
        return copies[id(x)]

    return map_tensors(copied, features)


def _encoder(unet: Any) -> list[torch.nn.Module]:
    ends = [getattr(unet, name, None) for name in ("conv_in", "mid_block")]
    return [part for part in (ends[0], *unet.down_blocks, ends[1]) if part is not None]


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
