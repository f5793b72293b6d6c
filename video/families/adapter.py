"""The denoiser of a diffusers pipeline, and the layout of its tokens in space and time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter, register_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Method
from mmaccel.private import is_forward_compiled, runs_compiled
from mmaccel.session import Session

from ..private import check_no_cache, hooks_anew
from ..samplers import is_one_of, own_setting
from .context_parallel import refuse_split

# What denoises, in the order in which a step runs them. A prior that a scheduler of its own steps is not one of them.
DENOISERS = (
    "transformer",
    "transformer_2",
    "transformer_ref",  # in place of the first, where MiniMax-H3 is given references
    "unconditional_transformer",
    "unet",
    "prior",
    "decoder",
)
PRIOR_SCHEDULER = "prior_scheduler"
EXTRACTING = "WanAnimate2Transformer3DModel"  # which reads the driving video in a pass of its own
TRANSFORMERS = frozenset({"diffusion transformer"})
UNETS = frozenset({"diffusion unet"})
IN_BLOCKS = frozenset({"diffusion in blocks"})  # which draws a video block after block, each with steps of its own
WHOLE_STEPS = TRANSFORMERS | UNETS  # whose whole steps a method may leave out


# Samplers that draw the sample anew in every step, so that what a step predicts says nothing of the next.
REDRAWING = (
    "LCMScheduler",
    "TCDScheduler",
    "FlowMatchLCMScheduler",
    "SCMScheduler",
    "CMStochasticIterativeScheduler",
)

# Pipelines that go by the attention of every pass, of which a step that is left out has none.
WATCHING = (
    "LEditsPPPipelineStableDiffusion",
    "LEditsPPPipelineStableDiffusionXL",
    "StableDiffusionAttendAndExcitePipeline",
    "StableDiffusionPix2PixZeroPipeline",
    "StableDiffusionSAGPipeline",
)


def _inside(part: Any) -> Any:
    """The model inside a `PeftModel`, whose layers have the adapters, unless both are compiled as one; else itself."""
    return part.get_base_model() if hasattr(part, "get_base_model") and not runs_compiled(part) else part


@register_adapter
class DiffusionTransformerAdapter(Adapter):
    """Any diffusers pipeline with a transformer or UNet, modular ones too, or a single diffusers transformer."""

    family = "diffusion transformer"  # or, for an instance, "diffusion unet"
    classes: ClassVar[tuple[str, ...]] = ("DiffusionPipeline", "ModularPipeline", "ModelMixin")
    modality = "video"
    call_is_run = True

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        if any(hasattr(denoiser, "up_blocks") for denoiser in self.denoisers()):
            (self.family,) = UNETS

    def denoisers(self) -> list[torch.nn.Module]:
        """The transformers or the UNet that the pipeline's scheduler steps; Wan 2.2 has two."""
        if isinstance(self.target, torch.nn.Module):
            return [self.target]
        apart = {"prior"} if getattr(self.target, PRIOR_SCHEDULER, None) is not None else set()
        found = [_inside(getattr(self.target, name, None)) for name in DENOISERS if name not in apart]
        return [part for part in found if isinstance(part, torch.nn.Module)]

    def place(self, denoiser: torch.nn.Module) -> str:
        """How users write a denoiser: ``"pipe.transformer"``."""
        names = (name for name in DENOISERS if _inside(getattr(self.target, name, None)) is denoiser)
        return f"pipe.{name}" if (name := next(names, "")) else "model"

    def check(self, method: Method) -> None:
        """Refuse targets that the method cannot work on, and transformers wrapped by `torch.compile`.

        That is another object than the one that runs.
        """
        self._refuse_unloaded()
        for denoiser in self.denoisers():
            if hasattr(denoiser, "_orig_mod"):
                raise UnsupportedTargetError(
                    f"{method.name} cannot follow torch.compile({type(denoiser._orig_mod).__name__}): write"
                    f" {self.place(denoiser)}.compile(...), which compiles it in place"
                )
            if hooks_anew(self.target) and is_forward_compiled(denoiser):
                raise UnsupportedTargetError(
                    f"{type(denoiser).__name__}.forward was compiled after enable_model_cpu_offload(), which takes it"
                    f" off again after one call: write {self.place(denoiser)}.compile(...) on a pipeline loaded anew"
                )
        if isinstance(method, DiffusionMethod):
            if method.needs_all_tokens:
                refuse_split(self.denoisers(), method.name)
            method.check(self)

    def _refuse_unloaded(self) -> None:
        """Refuse a modular pipeline that has yet to load what makes its steps: until then these are None."""
        pipe = self.target
        absent = [name for name in ("scheduler", *DENOISERS) if getattr(pipe, name, pipe) is None]
        if hasattr(pipe, "load_components") and absent and ("scheduler" in absent or not self.denoisers()):
            raise UnsupportedTargetError(
                f"{type(pipe).__name__} has not loaded its {absent[0]}: call pipe.load_components() before accelerate()"
            )

    def is_of_no_step(self, denoiser: Any, given: dict[str, Any]) -> bool:
        """Whether a pass only makes what those of the steps read: WanAnimate 2's first, by its own arguments.

        Of others, such as Flux 2 Klein KV, it is the first step that does so.
        """
        return given.get("kv_cache_mode") == "extract" and is_one_of((EXTRACTING,), denoiser)

    def ends_run(self, given: dict[str, Any]) -> bool:
        """Whether a pass with these arguments comes behind the last step of a run, and is part of none."""
        return False

    def parts(self) -> list[Any]:
        return list({id(part): part for part in (self.target, *self.denoisers())}.values())


@register_adapter
class BlockDiffusionAdapter(DiffusionTransformerAdapter):
    """A pipeline that draws a video in blocks, whose transformer keeps keys and values of the blocks before."""

    family = "diffusion in blocks"
    kin = "diffusion transformer"
    classes = ("AnyFlowFARPipeline",)

    def ends_run(self, given: dict[str, Any]) -> bool:
        """As the pass that fills keys and values with a finished block, also where its last step was left out."""
        return bool((given.get("kv_cache_flag") or {}).get("is_cache_step"))


PipelineSession = Session[DiffusionTransformerAdapter]
END = "denoising_end"  # an argument of a call, which a session remembers, since modular pipelines do not
CALLBACKS = ("callback_on_step_end", "callback")  # the second as older pipelines have it
IN_CALLBACK = "in callback"  # by this name a session remembers that one is running


class DiffusionMethod(Method[PipelineSession]):
    """Base of the methods with requirements on a pipeline or its transformers.

    Attributes
    ----------
    needs_all_tokens
        Whether it looks at tokens between the layers, which context parallelism splits over devices.
    traces
        Whether it notes which tokens each step computed, for :func:`mmaccel.video.trace_of`.
    measures_first
        Whether a session's first run measures, and only those after it are faster.
    """

    needs_all_tokens: ClassVar[bool] = False
    traces: ClassVar[bool] = False

    @property
    def measures_first(self) -> bool:
        return False

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        """Raise an `UnsupportedTargetError` or a `SettingError` if it cannot work on a target; every plan calls it."""

    def prepare(self, session: PipelineSession, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        session.memory.pop(END, None)
        if kwargs.get(END) is not None:
            session.memory[END] = kwargs[END]
        for name in CALLBACKS:
            callback = kwargs.get(name)
            if callable(callback) and not hasattr(callback, "tensor_inputs"):  # pipelines know diffusers' own by type
                kwargs[name] = functools.partial(_call_back, session, callback)


def _call_back(session: PipelineSession, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A pipeline's callback, which comes between two steps."""
    session.memory[IN_CALLBACK] = True
    try:
        return callback(*args, **kwargs)
    finally:
        session.memory.pop(IN_CALLBACK, None)


def has_masks(pipe: Any) -> bool:
    """Whether a pipeline draws codes in place of masks, whose steps predict no velocity."""
    return getattr(getattr(pipe, "scheduler", None), "config", {}).get("mask_token_id") is not None


def require_steps(adapter: DiffusionTransformerAdapter, method: str) -> None:
    """Raise an `UnsupportedTargetError` if the target has no pipeline steps to follow.

    A `ConflictError` if a cache of diffusers' own is on, which counts steps, or reuses those that come to it.
    """
    name = type(adapter.target).__name__
    if isinstance(adapter.target, torch.nn.Module):
        raise UnsupportedTargetError(
            f"{method} needs the steps of a pipeline, and {name} is only its transformer: accelerate(pipe, ...)"
        )
    if getattr(adapter.target, "scheduler", None) is None:
        raise UnsupportedTargetError(f"{method} follows the steps of pipe.scheduler, which {name} does not have")
    if not adapter.denoisers():
        raise UnsupportedTargetError(f"{name} has no transformer or unet whose steps could be followed")
    for denoiser in adapter.denoisers():
        check_no_cache(denoiser)
    if is_one_of(WATCHING, adapter.target):
        raise UnsupportedTargetError(
            f"{method} leaves passes out, or parts of them, and {name} goes by the attention of every one: run fewer"
            " steps"
        )
    scheduler = adapter.target.scheduler
    sampler = type(scheduler).__name__
    if has_masks(adapter.target):
        raise UnsupportedTargetError(
            f"{method} carries velocities from step to step, and {name} draws codes in place of masks:"
            " canvas.HaltonOrder() and others of canvas work on those of diffusers' own AmusedPipeline"
        )
    advice = "run fewer steps" + (", or use video.SparseAttention" if adapter.family in TRANSFORMERS else "")
    if own_setting(scheduler, "stochastic_sampling"):
        sampler += "(stochastic_sampling=True)"
        advice = (
            f"set pipe.scheduler = {type(scheduler).__name__}.from_config(pipe.scheduler.config,"
            " stochastic_sampling=False)"
        )
    elif not is_one_of(REDRAWING, scheduler):
        return
    raise UnsupportedTargetError(
        f"{method} carries predictions from step to step, and {sampler} draws the sample anew in every one: {advice}"
    )


def has_frame_samplers(pipe: Any) -> bool:
    """Whether every frame has a sampler of its own, a copy of the pipeline's (diffusion forcing)."""
    return hasattr(pipe, "generate_timestep_matrix")


def refuse_frame_samplers(pipe: Any, method: str) -> None:
    """Raise an `UnsupportedTargetError` if there is no step that all frames make."""
    if has_frame_samplers(pipe):
        raise UnsupportedTargetError(
            f"{method} needs steps that all frames make together, and {type(pipe).__name__} has a sampler"
            " for every frame: video.HeterogeneousSteps() works on it"
        )


def token_grid(denoiser: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int] | None:
    """Tokens along frames, height and width in a call of a denoiser; None for families that are not known here."""
    find = next((GRIDS[cls.__name__] for cls in type(denoiser).__mro__ if cls.__name__ in GRIDS), None)
    return None if find is None else find(denoiser, args, kwargs)


def _patches(denoiser: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """Wan, HunyuanVideo: latents `[B, C, F, H, W]` cut into patches."""
    latents = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    size = denoiser.config.patch_size
    if isinstance(size, int):
        size = (denoiser.config.patch_size_t, size, size)
    frames, height, width = (n // p for n, p in zip(latents.shape[2:], size, strict=True))
    return frames, height, width


def _named(denoiser: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int] | None:
    """LTX: tokens come packed, with their grid beside them."""
    frames, height, width = (kwargs.get(name) for name in ("num_frames", "height", "width"))
    return None if frames is None or height is None or width is None else (frames, height, width)


GRIDS = {
    "WanTransformer3DModel": _patches,
    "HunyuanVideoTransformer3DModel": _patches,
    "LTXVideoTransformer3DModel": _named,
}
