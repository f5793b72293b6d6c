"""Properties of diffusers' samplers: their noise levels, and what their steps are given and draw."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import torch

from mmaccel.stepping.replay import Make
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import map_tensors, tensors

# What every step goes by; CogVideoXDPMScheduler is given more between them.
STEPPED = ("model_output", "timestep", "sample")

TRAINED = 1000  # timesteps that samplers count down from

# Which make a step in two, at both of its ends, and look back no further.
HEUN = ("HeunDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")

# AnyFlow's, whose model predicts the mean velocity of a step.
FLOW_MAP = "FlowMapEulerDiscreteScheduler"

# Whose steps go by those before them, whatever their settings are.
MULTISTEP = ("PNDMScheduler", "LMSDiscreteScheduler")

# Pipelines that leave the last timestep out with every sampler.
LEAVING_LAST = ("LTXI2VLongMultiPromptPipeline",)

# Samplers whose step is a function of their state and of what they are given, with nothing drawn.
REPEATABLE = (
    "FlowMatchEulerDiscreteScheduler",
    "EulerDiscreteScheduler",
    "DDIMScheduler",
    "CogVideoXDDIMScheduler",
    "MiniMaxH3Scheduler",
    "UniPCMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DEISMultistepScheduler",
    "HeliosScheduler",
    "KDPM2DiscreteScheduler",
    FLOW_MAP,
    *HEUN,
    *MULTISTEP,
)

# Of these, which draw noise inside a step that is given `s_churn`.
CHURNING = ("EulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")


def step_names(cls: Any) -> tuple[str, ...]:
    """Names of what a sampler's `step` is given, in order: of the nearest class that names all that it goes by.

    A subclass may pass on whatever it is given.
    """
    return _step_names(cls)  # which type checkers take for hashable as `Any` alone


@functools.cache  # every step asks twice
def _step_names(cls: Any) -> tuple[str, ...]:
    own = (vars(base)["step"] for base in cls.__mro__ if "step" in vars(base))
    named = (tuple(inspect.signature(step).parameters)[1:] for step in own)
    return next((names for names in named if set(STEPPED) <= set(names)), STEPPED)


def drawn_once(names: tuple[str, ...], given: dict[str, Any], output: torch.Tensor) -> dict[str, Any]:
    """What a step is given, with the noise that DDIM draws where it has an `eta`: made again, it takes the same."""
    if not given.get("eta") or given.get("variance_noise") is not None or "variance_noise" not in names:
        return given
    from diffusers.utils.torch_utils import randn_tensor

    noise = randn_tensor(output.shape, given.get("generator"), output.device, output.dtype)
    return {**given, "generator": None, "variance_noise": noise}


def is_churned(scheduler: Any, step: Make, given: dict[str, Any]) -> bool:
    """Whether a sampler's `step` draws noise inside, as its call or a default of its own asks for."""
    if not is_one_of(CHURNING, scheduler):
        return False
    own = inspect.signature(step).parameters.get("s_churn")
    return bool(given.get("s_churn", 0.0 if own is None else own.default))


def made_levels(scheduler: Any, end: Any = None, pipe: Any = None) -> list[float]:
    """Noise levels of the steps that a pipeline makes: fewer where another, such as a refiner, is to `end` the run."""
    return levels_of(scheduler)[: _made_steps(scheduler, end, pipe) + 1]


def _made_steps(scheduler: Any, end: Any, pipe: Any) -> int:
    times = scheduler.timesteps
    if is_ancestral_flow(scheduler) or is_one_of(LEAVING_LAST, pipe):
        return len(times) - 1
    if not isinstance(end, float) or not 0 < end < 1:
        return len(times)
    trained = scheduler.config.num_train_timesteps
    return int((times >= round(trained - end * trained)).sum())


def levels_of(scheduler: Any) -> list[float]:
    """Noise levels of the steps, and the end of the last one; for other samplers shares of time."""
    timesteps, sigmas = torch.as_tensor(scheduler.timesteps).tolist(), getattr(scheduler, "sigmas", None)
    if is_flow(scheduler) and sigmas is not None and len(sigmas) == len(timesteps) + 1:
        return [float(sigma) for sigma in torch.as_tensor(sigmas).tolist()]  # all at once: they may be on a GPU
    trained = getattr(scheduler.config, "num_train_timesteps", None)
    if trained is None:  # Wuerstchen's time runs from 1 to 0, where no step begins
        return [float(t) for t in timesteps]
    is_share = min(timesteps) >= 0 and max(timesteps) <= 1  # as of Stable Audio
    return [*(t / (1 if is_share else trained) for t in timesteps), 0.0]


def given_to(pipe: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a pipeline by name, with its defaults."""
    call = inspect.signature(pipe.__call__).parameters
    usual = {name: one.default for name, one in call.items() if one.default is not one.empty}
    return {**usual, **dict(zip(call, args, strict=False)), **kwargs}


def asked_steps(pipe: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Steps that a call of a pipeline asks for, or inf where its arguments do not tell; a strength leaves some out."""
    given = given_to(pipe, args, kwargs)
    lists = [given[name] for name in ("timesteps", "sigmas") if given.get(name) is not None]
    steps = len(lists[0]) if lists else given.get("num_inference_steps")
    share = given.get("denoise_strength", given.get("strength"))  # LTX's strength tells how firmly pictures are held
    return steps * (share or 1.0) if isinstance(steps, int | float) else math.inf


def timestep_of(scheduler: Any, run: SamplerRun) -> float:
    """The timestep of a step, as most samplers count it: from 1000, which is noise, down to 0.

    Where frames have samplers of their own it is that of their mean noise level; where time is a function of the noise,
    as in EDM, or levels are no shares of it, as in Cosmos-Predict 2, that of flow matching with as much noise beside
    the data.
    """
    config, level = scheduler.config, run.levels[run.step]
    trained, sigmas = config.get("num_train_timesteps"), getattr(scheduler, "sigmas", None)
    if own_setting(scheduler, "invert_sigmas"):  # Mochi's levels rise
        level = 1 - level
    if run.frames or trained is None or is_flow(scheduler):
        is_share = max(run.levels) < 2  # in float32 the first may be a little above 1
        return TRAINED * (min(level, 1.0) if is_share else level / (1 + level))
    if sigmas is not None and float(scheduler.timesteps.abs().max()) < 2:
        sigma = float(sigmas[run.step])
        return TRAINED * sigma / (1 + sigma)
    return float(scheduler.timesteps[run.step])


def first_step(scheduler: Any, timestep: Any, pipe: Any = None) -> int:
    """Index of the step that a run begins with, at the timestep that the denoiser is given.

    Not all samplers keep it: of DDIM the timestep itself has to be found among the sampler's. PNDM has one twice, of
    which it is that from which on there are as many as the pipeline says.
    """
    begin = getattr(scheduler, "begin_index", None)
    if begin is not None or timestep is None:
        return begin or 0
    at = torch.as_tensor(timestep).max().item()  # a first frame that is held has one of 0
    times = scheduler.timesteps.tolist()
    found = [i for i, t in enumerate(times) if t == at]
    left = getattr(pipe, "num_timesteps", None)
    return next((i for i in found if len(times) - i == left), next(iter(found), 0))


def is_flow(scheduler: Any) -> bool:
    """Whether its noise levels are those of flow matching, along which a sample moves by its velocity."""
    predicts_flow = getattr(scheduler.config, "prediction_type", None) == "flow_prediction"
    return predicts_flow or hasattr(scheduler, "scale_noise") or is_ancestral_flow(scheduler)


def is_ancestral_flow(scheduler: Any) -> bool:
    """Whether it is LTX's sampler of flow matching that draws noise. Its last timestep is where the last step ends."""
    return is_one_of(("LTXEulerAncestralRFScheduler",), scheduler)


def own_setting(scheduler: Any, name: str) -> Any:
    """A setting in a sampler's configuration that its class takes, else None.

    By `from_config` a sampler keeps those of the one before it too, which it does not go by.
    """
    cls: Any = type(scheduler)
    return scheduler.config.get(name) if name in _settings(cls) else None


@functools.cache  # some steps ask for several
def _settings(cls: Any) -> frozenset[str]:
    """Names of the settings that a sampler's class takes."""
    own = (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base))
    return frozenset(name for init in own for name in inspect.signature(init).parameters)


def is_repeatable(scheduler: Any) -> bool:
    """Whether steps of this sampler can be repeated from the state before them."""
    draws = own_setting(scheduler, "stochastic_sampling") or "sde" in str(own_setting(scheduler, "algorithm_type"))
    draws = draws or own_setting(scheduler, "scheduler_type") == "dmd"
    adds = own_setting(scheduler, "skip_prk_steps") is False  # PNDM's Runge-Kutta steps, to what it keeps in place
    return is_one_of(REPEATABLE, scheduler) and not (draws or adds) and own_setting(scheduler, "solver_p") is None


def goes_by_mean(scheduler: Any) -> bool:
    """Whether its steps go by the mean of their velocity already: Heun's, and AnyFlow's."""
    return is_one_of((*HEUN, FLOW_MAP), scheduler)


def is_one_of(names: tuple[str, ...], scheduler: Any) -> bool:
    """Whether its class, or one that it extends, has one of these names."""
    return any(cls.__name__ in names for cls in type(scheduler).__mro__)


def is_one_step(scheduler: Any) -> bool:
    """Whether a step of this sampler goes by nothing but where it starts; of Heun's and KDPM2, the two of one."""
    looks_back = is_one_of(MULTISTEP, scheduler) or (own_setting(scheduler, "solver_order") or 1) > 1
    return is_repeatable(scheduler) and not looks_back


def straight(make: Make, length: float) -> Make:
    """A step of any sampler of flow matching, as Euler's over the difference of its noise levels.

    The sampler makes its own step too, and so keeps count.
    """

    def step(velocity: torch.Tensor, sample: torch.Tensor) -> Any:
        moved = sample.float() + length * velocity.float()
        result = make(velocity, sample)
        ends = iter([moved.to(next(tensors(result)).dtype)])
        return map_tensors(lambda x: next(ends, x), result)

    return step
