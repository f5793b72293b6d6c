"""From a prompt to a clip, for the command line and the benchmarks."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from PIL import Image

from mmaccel import zoo
from mmaccel.adapter import find_adapter
from mmaccel.cache import require_memory
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError, WeightsError
from mmaccel.modality import get_modality
from mmaccel.session import Session
from mmaccel.zoo.weights import check_name, load_pipeline, pipeline_class

from .calling import IN_PYTHON, calling, refuse_without_picture, tell
from .families.adapter import DiffusionTransformerAdapter, has_masks

SILENT = "the pipeline made sound too, which the clip is without: call it in Python, and save the `audio` it returns"
OURS = ("generator", "output_type")  # arguments of every call
ARGUMENT_OF = {  # in the pipeline's call, by the setting
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "frames": "num_frames",
    "height": "height",
    "width": "width",
}


@dataclass
class VideoSettings:
    """Settings of one clip; None leaves the pipeline's own default.

    Attributes
    ----------
    steps, guidance
        Denoising steps and guidance scale.
    frames, height, width
        Size of the clip.
    """

    seed: int = 0
    steps: int | None = None
    guidance: float | None = None
    frames: int | None = None
    height: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "frames", "height", "width"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name}={value}: it must be at least 1")

    def arguments(self) -> dict[str, Any]:
        """Arguments of the pipeline's call."""
        given = {name: getattr(self, setting) for setting, name in ARGUMENT_OF.items()}
        return {name: value for name, value in given.items() if value is not None}


def briefly(settings: VideoSettings, pipe: Any) -> VideoSettings:
    """For a clip that is discarded: the first one of a process is slow, and would flatter what comes after it.

    A pipeline with a list of steps for each stage, or with fixed ones, cannot be told to make fewer.
    """
    call = inspect.signature(type(pipe).__call__).parameters
    takes = ARGUMENT_OF["steps"] in call or any(one.kind is one.VAR_KEYWORD for one in call.values())
    return replace(settings, steps=min(settings.steps or 2, 2)) if takes else settings


def check_memory(settings: VideoSettings) -> None:
    """Raise a `MemoryLimitError` if the finished clip alone, in float32, does not fit into free memory."""
    frames, height, width = (getattr(settings, name) or 1 for name in ("frames", "height", "width"))
    what = f"{frames} frames of {width} x {height} pixels"
    require_memory(12 * frames * height * width, "cpu", what, "ask for fewer, or for smaller ones")


def check_places(pipe: Any, settings: VideoSettings) -> None:
    """Raise a `SettingError` if a clip has more places in a row than rotary positions of the transformer tell apart."""
    config = getattr(getattr(pipe, "transformer", None), "config", None)
    most, patch = getattr(config, "rope_max_seq_len", None), getattr(config, "patch_size", None)
    if not isinstance(most, int) or not isinstance(patch, list | tuple) or len(patch) != 3:
        return
    time, space = (getattr(pipe, f"vae_scale_factor_{name}", None) or 1 for name in ("temporal", "spatial"))
    largest = {
        "frames": (most * patch[0] - 1) * time + 1,
        "height": most * patch[1] * space,
        "width": most * patch[2] * space,
    }
    for name, limit in largest.items():
        if (getattr(settings, name) or 0) > limit:
            raise SettingError(f"{name}={getattr(settings, name)}: {type(pipe).__name__} makes at most {limit}")


def check_settings(pipe: Any, settings: VideoSettings, more: Collection[str] = ()) -> None:
    """Refuse a call with these settings, and `more` arguments, that a pipeline does not have or that do not fit it."""
    typed = {name: setting for setting, name in ARGUMENT_OF.items()}
    check_arguments(pipe, ("prompt", *settings.arguments(), *more), typed)
    check_places(pipe, settings)


def check_arguments(
    pipe: Any, given: Collection[str] = ("prompt",), typed: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse a call of a pipeline or its class with these arguments, if it needs others too or does not take one.

    Of an argument that came from something else that the user typed, `typed` says what.

    Raises
    ------
    UnsupportedTargetError, SettingError
    """
    from diffusers import DiffusionPipeline

    cls = pipe if isinstance(pipe, type) else type(pipe)
    kind, call = cls.__name__, inspect.signature(cls.__call__).parameters.values()
    needed = [one.name for one in call if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    missing = [f"{name}=" for name in needed if name not in ("self", *OURS, *given)]
    if missing:
        raise UnsupportedTargetError(f"{kind} also needs {', '.join(missing)}: {IN_PYTHON}")
    if any(one.kind is one.VAR_KEYWORD for one in call):  # and passed on, or passed over: frames by those of pictures
        unknown = {"num_frames"} - _named(cls) if issubclass(cls, DiffusionPipeline) else set()
    else:
        unknown = {*given} - {one.name for one in call}
    foreign = next((name for name in given if name in unknown), None)
    if foreign == "prompt":
        raise UnsupportedTargetError(f"{kind} takes no prompt: {IN_PYTHON}")
    if foreign:
        raise SettingError(f"{kind} takes no {foreign}=: leave out {typed.get(foreign, foreign)}")


def check_kind(model: str) -> None:
    """Refuse a pipeline that needs more than a prompt before anything but its index is loaded.

    Raises
    ------
    UnsupportedTargetError
    """
    kind = pipeline_class(model) if not zoo.like(model) and ("/" in model or Path(model).is_dir()) else None
    if kind is not None:
        check_arguments(kind)
        refuse_without_picture(kind)


def load(model: str, device: str = "cpu", dtype: torch.dtype | None = None) -> Any:
    """Load a pipeline from a zoo name, a hub id or a folder, one of a recipe's too; never runs a checkpoint's code.

    Raises
    ------
    UnknownNameError
        If there is none of this name.
    UnsupportedTargetError
        If it is not a diffusers pipeline with a denoiser, or needs its own code.
    WeightsError
        If its weights are damaged.
    """
    own = zoo.like(model)
    kind = zoo.modality(own) if own else None
    if kind == "video":
        pipe = zoo.load(model).to("cpu", dtype)
    elif own == model:
        raise UnsupportedTargetError(f"{model} makes no video: use `mmaccel run {kind}`")
    else:
        check_name("pipeline", model, shipped := get_modality("video").models())
        try:
            pipe = load_pipeline(model, dtype)
        except WeightsError:
            raise
        except (OSError, ValueError, AttributeError) as error:
            raise UnsupportedTargetError(
                f"{model!r} is not a pipeline: give a zoo name ({', '.join(shipped)}), a hub id or a folder"
                f" with a model_index.json ({str(error).splitlines()[0]})"
            ) from error
    adapter = find_adapter(pipe, "video")
    if adapter.modality != "video":
        command = "image PROMPT -o picture.png" if has_masks(pipe) else adapter.modality
        raise UnsupportedTargetError(
            f"{model} is a {type(pipe).__name__}, of the family {adapter.family}: use"
            f" `mmaccel run {command} --model {model}`"
        )
    if not isinstance(adapter, DiffusionTransformerAdapter) or not adapter.denoisers():
        raise UnsupportedTargetError(f"{model} is a {type(pipe).__name__} without a transformer to accelerate")
    return pipe.to(device)


@dataclass
class Filmed:
    """The frames of a prompt, the seconds they took, and the field of the pipeline's output that has them."""

    frames: list[Image.Image]
    seconds: float
    field: str = "frames"

    @property
    def kind(self) -> str:
        """What was made: ``"clip"`` or ``"picture"``."""
        return "picture" if self.field == "images" else "clip"


def on_step_end(pipe: Any, call: Callable[..., Any]) -> dict[str, Any]:
    """The argument of :func:`film` that has a pipeline call back after each step; none where it takes no such one.

    A pipeline may pass on to the class that it extends what its own call does not name.
    """
    return {"callback_on_step_end": call} if "callback_on_step_end" in _named(type(pipe)) else {}


def refuse_pictures(pipe: Any) -> None:
    """Raise an `UnsupportedTargetError` for a pipeline of diffusers none of whose arguments is of frames or videos."""
    from diffusers import DiffusionPipeline

    cls, named = type(pipe), _named(type(pipe))
    if issubclass(cls, DiffusionPipeline) and not any(word in name for name in named for word in ("frame", "video")):
        pictures = "`mmaccel batch video` writes its pictures, with --format .png, or " if "height" in named else ""
        raise UnsupportedTargetError(f"{cls.__name__} makes no clips: {pictures}{IN_PYTHON}")


def _named(cls: type) -> set[str]:
    """All arguments that the call of a class names, or that of one which it extends."""
    calls = [vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)]
    return {name for one in calls for name in inspect.signature(one).parameters}


def film(target: Any, prompt: str, settings: VideoSettings, **more: Any) -> Filmed:
    """Run a session or a plain pipeline from a seed.

    Raises
    ------
    PromptError
        If the prompt is empty.
    SettingError
        If the pipeline refuses a setting, such as a size, or does not have it.
    UnsupportedTargetError
        If it needs more than a prompt, or makes neither a clip nor a picture.
    """
    if not prompt.strip():
        raise PromptError("the prompt is empty: describe the clip, such as 'rocket moves up'")
    pipe, arguments = target.target if isinstance(target, Session) else target, settings.arguments()
    check_settings(pipe, settings, more)
    generator = torch.Generator().manual_seed(settings.seed)
    began = time.perf_counter()
    with calling(target, (*arguments, *more)):
        output = target(prompt=prompt, generator=generator, output_type="pil", **arguments, **more)
    seconds = time.perf_counter() - began
    if isinstance(target, Session) and getattr(output, "audio", None) is not None:
        tell(target.report, [SILENT])
    field = next((name for name in ("frames", "video", "images") if hasattr(output, name)), None)
    if field is None:
        raise UnsupportedTargetError(
            f"the pipeline's {type(output).__name__} has no frames: {IN_PYTHON},"
            " or compare it with `mmaccel compare video`"
        )
    return Filmed(_frames(getattr(output, field), field), seconds, field)


def _frames(made: Any, field: str) -> list[Image.Image]:
    """The clip or picture of the first prompt; Cosmos 3 has its `video` without a batch."""
    if field == "video":
        return list(made)
    return list(made[0] if field == "frames" else made[:1])
