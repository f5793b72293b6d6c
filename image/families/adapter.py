"""Base of the image adapters: they replace `generate` on one model instance, and take it back."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel import private
from mmaccel.adapter import Adapter
from mmaccel.cache.argument import CACHE_NAMES
from mmaccel.decoding.setting import mask_of, tell_rounding, tokens_made
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.linears.skinny import skinny_linears
from mmaccel.patching import wrap_generate
from mmaccel.session import Session

from ..decoding.layout import Layout
from ..decoding.task import ImageTask

# Arguments of `generate` that only an accelerated call takes.
OWN_ARGUMENTS = ("generator", "progress")
UNSUPPORTED_ARGUMENTS = (
    "logits_processor",
    "stopping_criteria",
    "streamer",
    "assistant_model",
    "custom_generate",
    *CACHE_NAMES,
    "inputs_embeds",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
)


class ImageAdapter(Adapter):
    """A model whose `generate` writes image tokens."""

    modality = "image"
    ends_early = False  # whether its own generate may end a picture before it is whole

    @property
    def model(self) -> Any:
        """The transformers model inside the target."""
        return self.target

    def parts(self) -> list[Any]:
        return [self.target] if self.model is self.target else [self.target, self.model]

    @abstractmethod
    def makes_images(self, kwargs: dict[str, Any]) -> bool:
        """Whether this call of `generate` writes image tokens; other calls are left alone."""

    @abstractmethod
    def begin(self, kwargs: dict[str, Any]) -> ImageTask:
        """Read the arguments of `generate`."""

    def keeps_grid(self, kwargs: dict[str, Any]) -> bool:
        """Whether the model's own generate writes whole pictures with these arguments."""
        return True

    def plain_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What the model's own generate needs beside these arguments, or in their place, to write whole pictures.

        Raises an `UnsupportedTargetError` if it cannot with these.
        """
        return {}

    def layout(self) -> Layout | None:
        """The layout of every picture, where the model's configuration fixes it."""
        return None

    def check(self, method: Any) -> None:
        implementation = private.attention_name(self.model.config.get_text_config())
        if implementation not in ("sdpa", "eager"):
            raise UnsupportedTargetError(
                f"attn_implementation={implementation!r} takes no window mask:"
                " load the model with attn_implementation='sdpa'"
            )
        method.require_fit(self.model)
        layout = self.layout()
        if layout is not None:
            method.check_layout(layout)

    def attach(self, method: Any, session: Session, stack: ExitStack) -> None:
        """Let `method` decode the image calls of the model's `generate` until the stack is closed."""
        accelerated = functools.partial(self._accelerated, session, method)
        wrap_generate(stack, session, accelerated, self.model, applies=self._applies)

    def _applies(self, kwargs: dict[str, Any]) -> bool:
        """Whether a call writes an image; what only such calls take is refused in others."""
        if self.makes_images(kwargs):
            return True
        if [name for name in OWN_ARGUMENTS if kwargs.pop(name, None) is not None]:
            raise UnsupportedTargetError("this call writes no image: leave out generator and progress")
        return False

    @torch.no_grad()
    def _accelerated(self, session: Session, method: Any, original: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        generator, progress = (kwargs.pop(name, None) for name in OWN_ARGUMENTS)
        _check_arguments(kwargs, self.model.generation_config)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise SettingError(
                f"generator is a {type(generator).__name__}: give one torch.Generator for the whole batch"
            )
        report = session.report
        _bring(self.model)
        task = self.begin({name: value for name, value in kwargs.items() if name not in UNSUPPORTED_ARGUMENTS})
        method.check_layout(task.layout)
        length = task.layout.length
        if method.is_neutral(task.layout) and generator is None and self.keeps_grid(kwargs):
            result = original(**kwargs)
            length = min(length, tokens_made(result, kwargs) // task.batch) if self.ends_early else length
            passes = length
            if progress is not None:
                progress(passes, passes)
            report.warnings.append("these settings are plain decoding: the model's own generate was called")
        else:
            source = private_generator(generator, task, method.keeps_noise)
            with ExitStack() as stack:
                skinny_linears(stack, self.model)
                decoder = method.decode(task, source, progress, session)
            if bool(decoder.broken):  # the model's own generate could not draw, and tells less
                raise UnsupportedTargetError(
                    f"{type(self.model).__name__} gives NaN in {self.model.dtype}, by which nothing can be drawn:"
                    " load it in bfloat16 or float32"
                )
            if method.exact:
                tell_rounding(report, self.model)
            result = task.result(decoder.tokens)
            passes = decoder.stats.forwards
            report.peak_extra_bytes = decoder.cache.nbytes() + decoder.extra_bytes
            report.details.update(stats=decoder.stats.to_dict())
        report.forwards, report.plain_forwards = passes, length
        report.tokens = length * task.batch
        report.engaged = passes < length
        return result


def _bring(model: Any) -> None:
    """Bring a model that is off-loaded whole: its hook waits for a call of the model, and decoding calls its parts."""
    from accelerate.hooks import CpuOffload

    placed = getattr(model, "_hf_hook", None)
    if isinstance(placed, CpuOffload):
        placed.pre_forward(model)


def _check_arguments(kwargs: dict[str, Any], usual: Any) -> None:
    """Refuse arguments of `generate`, or of its configuration, that accelerated decoding does not read."""
    config = kwargs.get("generation_config") or usual
    for name in UNSUPPORTED_ARGUMENTS:
        value = kwargs.get(name, getattr(config, name, None) if name.startswith("output_") else None)
        if value is not None and value is not False and not (isinstance(value, list) and not value):
            raise UnsupportedTargetError(
                f"generate({name}=...) is not supported while accelerated:"
                " leave it out, or call generate on the model after .remove()"
            )


def private_generator(generator: torch.Generator | None, task: ImageTask, keeps_noise: bool) -> torch.Generator | None:
    """The caller's generator, or one seeded by a single draw from the global state, as sampling would draw.

    None for a method that keeps the noise: it draws from the global state of the model's device itself. A generator on
    another device (diffusers pipelines take CPU generators) seeds one on the model's.
    """
    if generator is not None and _place(generator.device) == _place(task.device):
        return generator
    if generator is None and keeps_noise and task.sampling.do_sample:
        return None
    private = torch.Generator(task.device)
    if generator is None and not task.sampling.do_sample:
        return private.manual_seed(0)  # greedy decoding draws no token: leave the global state alone
    device = None if generator is None else generator.device
    return private.manual_seed(int(torch.randint(2**62, (), generator=generator, device=device)))


def _place(device: torch.device) -> tuple[str, int]:
    """A device with its number, where "cuda" is the current one."""
    if device.type == "cuda" and device.index is None:
        return "cuda", torch.cuda.current_device()
    return device.type, device.index or 0


def left_pad(rows: list[torch.Tensor], masks: list[torch.Tensor], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack prompts `[B_i, P_i]` of different lengths, padded on the left."""
    longest = max(row.shape[1] for row in rows)
    ids = [torch.nn.functional.pad(row, (longest - row.shape[1], 0), value=pad) for row in rows]
    padded = [torch.nn.functional.pad(mask, (longest - mask.shape[1], 0), value=0) for mask in masks]
    return torch.cat(ids), torch.cat(padded)


def prompt_of(model: Any, kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of a call, `[B, P]` each, the mask as the model's own generate has it.

    Raises
    ------
    UnsupportedTargetError
        If they are missing or of the wrong kind.
    """
    ids = prompt_tokens(kwargs)
    mask = mask_of(model, {**kwargs, "input_ids": ids})
    kwargs.pop("attention_mask", None)
    if mask.shape != ids.shape:
        raise UnsupportedTargetError(
            f"attention_mask has shape {tuple(mask.shape)} and input_ids {tuple(ids.shape)}:"
            " pass both from one processor call"
        )
    return ids, mask


def prompt_tokens(kwargs: dict[str, Any]) -> torch.Tensor:
    """Token ids of a call, `[B, P]`; raises like :func:`prompt_of`."""
    ids = kwargs.pop("inputs", None)
    ids = kwargs.pop("input_ids", None) if ids is None else ids
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or ids.numel() == 0:
        raise UnsupportedTargetError(
            "generate needs input_ids of shape (batch, tokens): pass what the processor returns, generate(**inputs)"
        )
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise UnsupportedTargetError(f"input_ids are {ids.dtype}: pass integer token ids, input_ids.long()")
    return ids
