"""Parts of the `generate` of a session: the cache of a method, the arguments, and the report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from transformers import DynamicCache

from mmaccel import private
from mmaccel.cache import require_memory
from mmaccel.cache.argument import cache_of, cached
from mmaccel.cache.evicting import ROOM
from mmaccel.decoding.setting import give_cache, prompt_ids, setting, why_prefixed
from mmaccel.patching import attention_layers, wrap_method
from mmaccel.report import Report

from ..input.prompt import Prompt
from .attention import SessionAttention
from .call import GenerateRun
from .rows import causal_pairs

OURS = "_mmaccel_cache"  # of a cache that a caller gave empty: the one of a method, whose layers it has
DEFAULT_NEW = 20  # new tokens that transformers generates by default


def bring_cache(model: Any, config: Any, attention: SessionAttention, run: GenerateRun, kwargs: dict[str, Any]) -> Any:
    """The cache of this call if it is ours; if the call has none, a new one is put into its arguments.

    `config` is that of the decoder.
    """
    method = next((m for m in attention.methods if m.replaces_cache and not m.is_neutral), None)
    if method is None:
        return None
    batch, prompt, new = _sizes(model, kwargs)
    run.prompt = None if run.guessing is None else prompt
    given = cache_of(kwargs)
    ours = getattr(given, OURS, given)
    if _is_ours(given, attention):
        return ours
    if given is not None and not _is_new(given):
        run.warn(
            f"{method} ran plainly: past_key_values is not from this session; give none in the first turn, or an"
            " empty DynamicCache, and in later ones that of the turn before"
        )
        return None
    for name in ("use_cache", "cache_implementation"):
        value = setting(model, kwargs, name)
        if value is not None and value is not True:
            run.warn(f"{method} ran plainly: {name}={value!r}")
            return None
    if why := why_prefixed(model):
        run.warn(f"{method} ran plainly: {why}")
        return None
    new = min(new, ROOM)  # a cache grows: few answers have all the tokens that they may have
    # what each device gets of the layers, or each process of the heads, is not known here
    if not on_several_devices(model) and not private.heads_are_split(attention_layers(model)):
        need = method.cache_bytes(config, batch, prompt, new, model.dtype)
        require_memory(need, model.device, f"generate with {method}, {batch} x {prompt + new} tokens,")
    cache: Any = method.make_cache(config, prompt, new)
    cache.reader = attention
    if given is None:
        give_cache(model, kwargs, cache)
    else:
        given.layers = cache.layers
        setattr(given, OURS, cache)
    return cache


def keep_cache(stack: ExitStack, model: Any, attention: SessionAttention) -> None:
    """Let a model that throws a cache of ours away fill it anew instead, until `stack` closes.

    As Phi-3 does to read a text again, with keys that are turned otherwise, once it is longer than that takes.
    """

    def prepare(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inputs, given = original(*args, **kwargs), cache_of(kwargs)
        if _is_ours(given, attention) and cache_of(inputs) is None:
            given.reset()
            inputs.update(cached(given))
        return inputs

    wrap_method(stack, model, "prepare_inputs_for_generation", prepare)


def _is_ours(cache: Any, attention: SessionAttention) -> bool:
    """Whether a cache, or the one that stands in it, is read by this attention."""
    return getattr(getattr(cache, OURS, cache), "reader", None) is attention


def _is_new(cache: Any) -> bool:
    """Whether a cache of the caller is the usual one, and empty, so that other layers can stand in it."""
    return type(cache) is DynamicCache and not cache.offloading and not cache.get_seq_length()


def on_several_devices(model: Any) -> bool:
    """Whether the weights of a model are on several devices."""
    return len({weight.device for weight in model.parameters()}) > 1


def _sizes(model: Any, kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """Rows with beams counted, tokens of the prompt, and tokens to generate at most."""
    embeds = kwargs.get("inputs_embeds")
    prompt = prompt_ids(kwargs) if embeds is None else embeds
    batch, length = (1, 1) if prompt is None else prompt.shape[:2]
    return batch * copies(model, kwargs), length, new_tokens(model, kwargs, length)


def copies(model: Any, kwargs: dict[str, Any]) -> int:
    """Rows in the model per prompt."""
    return max(setting(model, kwargs, "num_beams") or 1, setting(model, kwargs, "num_return_sequences") or 1)


def new_tokens(model: Any, kwargs: dict[str, Any], length: int) -> int:
    """Tokens that a call of `generate` adds at most to a prompt of `length`."""
    new: int | None = setting(model, kwargs, "max_new_tokens")
    if new is None:
        limit = setting(model, kwargs, "max_length")
        new = DEFAULT_NEW if limit is None else max(1, limit - length)
    return new


def plain_keys(adapter: Any, prompt: Prompt, result: Any, rows: int) -> int:
    """Keys that plain attention attends to from the original prompt, over all heads here of the layers that attend."""
    sequences = result if isinstance(result, torch.Tensor) else result.sequences
    new = sequences.shape[1] - prompt.input_ids.shape[1]
    lengths = [(length - seen + new - 1, length + new - 1) for length, seen in prompt.full_lengths]
    layers = DynamicCache(config=adapter.text_config).layers
    windows = [getattr(layers[number], "sliding_window", None) for number in adapter.attending()]
    pairs = sum(causal_pairs(*each, window) for window in windows for each in lengths)
    return int(rows * pairs * adapter.attention.heads)


def fill(report: Report, attention: SessionAttention, run: GenerateRun, cache: Any) -> None:
    report.keys, report.plain_keys = run.keys.read(), run.plain_keys.read()
    report.engaged = report.engaged or bool(run.engaged)  # drafts beside it may have
    held = 0 if cache is None else max(cache.nbytes(), getattr(cache, "peak", 0))
    report.peak_extra_bytes += held + run.plan_bytes
    report.warnings.extend(run.warnings)
    for method in attention.methods:
        if method.is_neutral:
            report.warnings.append(f"{method}: this budget is plain attention, the model's own was called")
        elif method.name not in run.engaged and not run.warnings:
            report.warnings.append(f"{method} did not engage: {method.idle(run)}")
