"""What a call of `generate` is given, and what it makes of it."""

from __future__ import annotations

import copy
from typing import Any

import torch

from mmaccel import private
from mmaccel.cache.argument import cached
from mmaccel.report import Report

TAKEN_BACK = "hybrid"  # a name of the usual cache, which checkpoints of Gemma say and `generate` takes back itself
USUAL_CACHE = ("dynamic", TAKEN_BACK)
# Of layers that quantize what they are given by the largest number of all its tokens; those of NVFP4 do it only where
# there are several.
BY_PASS = ("torch.ao.nn.quantized.dynamic.", "fouroversix.", "transformers.integrations.nvfp4")
ROUNDED = "has quantized layers which round a token by all others of a pass"


def setting(model: Any, kwargs: dict[str, Any], name: str) -> Any:
    """An argument of `generate`, from the call, its generation config or the model's; None for the default."""
    found = _asked(model, kwargs, name)
    return None if name == "cache_implementation" and found in USUAL_CACHE else found


def _asked(model: Any, kwargs: dict[str, Any], name: str) -> Any:
    if name in kwargs:  # also as None, which counts more than all configs
        return kwargs[name]
    sources = (kwargs.get("generation_config"), model.generation_config)
    values = (getattr(source, name, None) for source in sources if source is not None)
    return next((value for value in values if value is not None), None)


def give_cache(model: Any, kwargs: dict[str, Any], cache: Any) -> None:
    """Put a cache into the arguments of a call in place of the name of one: `generate` does not take both."""
    kwargs.pop("past_key_values", None)  # given as None, by its name before transformers 5.24
    kwargs.update(cached(cache))
    if _asked(model, kwargs, "cache_implementation") not in (None, TAKEN_BACK):
        leave_out(model, kwargs, "cache_implementation", TAKEN_BACK)


def leave_out(model: Any, kwargs: dict[str, Any], name: str, nothing: Any = None) -> None:
    """Take a setting out of a call that has it.

    Beside a `generation_config` transformers warns of any setting as an argument: it is `nothing` in a copy of that.
    Where this is None and the model's own config has the setting, which would count again, the warning comes.
    """
    kwargs.pop(name, None)
    config = kwargs.get("generation_config")
    if config is None or (nothing is None and getattr(model.generation_config, name, None) is not None):
        kwargs[name] = None  # which counts more than all configs
        return
    kwargs["generation_config"] = copy.copy(config)
    setattr(kwargs["generation_config"], name, nothing)


def keeps_cache(config: Any, cache: Any) -> bool:
    """Whether the cache of a call outlives it: the caller gave it, or is given it with the texts."""
    return bool(config.return_dict_in_generate or getattr(cache, "_is_user_defined", False))


def asks_router_logits(model: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the passes of a call tell what chose their experts, as checkpoints trained with that loss may say."""
    configs = model.config, model.config.get_text_config(decoder=True)
    told = [kwargs.get("output_router_logits"), *(getattr(each, "output_router_logits", False) for each in configs)]
    return any(told)


def why_no_cache(model: Any) -> str | None:
    """Why a model keeps no cache while it generates; None if it does."""
    # the name that transformers has now, and the former one, of which it would warn
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    known = next((name for name in names if hasattr(type(model), name)), None)
    if model.training and known is not None and getattr(model, known):
        return "the model is in training with gradient checkpointing, which keeps no cache"
    return None


def why_prefixed(model: Any) -> str | None:
    """Why a model fills another cache than the one that it is given; None if it does not."""
    preparing = getattr(model.prepare_inputs_for_generation, "__self__", None)
    if getattr(getattr(preparing, "active_peft_config", None), "peft_type", None) in ("PREFIX_TUNING", "CARTRIDGE"):
        return "peft begins a cache of its own with a prefix"
    return None


def why_prepared(model: Any) -> str | None:
    """Who else prepares what a model is given in each pass; None if nobody does."""
    preparing = getattr(model.prepare_inputs_for_generation, "__self__", model)
    return None if preparing is model else "another library prepares its passes (prompt tuning of peft)"


def why_adapted(model: Any) -> str | None:
    """Why the passes of a model depend on more than the tokens read and the cache; None if they do not."""
    if why := why_prepared(model):
        return why
    adapters = getattr(model, "peft_config", None) or {}
    if any(getattr(config, "alora_invocation_tokens", None) for config in adapters.values()):
        return "an aLoRA adapter counts its tokens from the end of each pass"
    return f"{type(model).__name__} {ROUNDED}" if rounds_by_pass(model) else None


def rounds_by_pass(model: Any) -> bool:
    """Whether a token has other numbers beside others than alone, as in torch's dynamic int8."""
    return any(map(_quantizes_by_pass, model.modules())) or any(map(_scales_by_pass, model.parameters()))


def tell_rounding(report: Report, model: Any) -> None:
    """Say that a run whose passes are others than the plain model's is not exact, where layers round by the pass."""
    if rounds_by_pass(model):
        report.exact = False
        report.warnings.append(f"not exact here: {type(model).__name__} {ROUNDED}")


def _quantizes_by_pass(layer: Any) -> bool:
    """Whether a layer quantizes by all tokens of a pass, or by the number of these."""
    if type(layer).__name__ == "Linear8bitLt":  # LLM.int8 keeps columns whole in which any token has a large number
        return bool(getattr(getattr(layer, "state", None), "threshold", 0) > 0)
    told = getattr(getattr(layer, "quantization_scheme", None), "input_activations", None)  # of compressed-tensors
    is_scaled = told is not None and told.dynamic is True and told.strategy == "tensor"
    return is_scaled or type(layer).__module__.startswith(BY_PASS)


def _scales_by_pass(weight: torch.Tensor) -> bool:
    """Whether torchao quantizes what meets a weight by the largest number of all its tokens."""
    told = getattr(weight, "act_quant_kwargs", None)
    if told is None or getattr(weight, "act_quant_scale", None) is not None:  # of a calibration
        return False
    is_per_tensor = type(getattr(told, "granularity", None)).__name__ == "PerTensor"
    return is_per_tensor or bool(getattr(told, "use_dynamic_per_tensor_scale", False))  # of NVFP4


def prompt_ids(kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The token ids of the prompt of a call of `generate`; None if it has embeddings alone."""
    found = (kwargs.get(name) for name in ("inputs", "input_ids"))
    return next((value for value in found if isinstance(value, torch.Tensor)), None)


def pass_device(model: Any, ids: torch.Tensor) -> torch.device:
    """Where passes are prepared: `generate` takes prompts from a processor and moves them, but not off "meta"."""
    device = torch.device(model.device)
    return ids.device if device.type == "meta" else device


def mask_of(model: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """The attention mask `[B, L]` of `input_ids`; where a call has none, the one that `generate` makes itself."""
    given: torch.Tensor | None = kwargs.get("attention_mask")
    if given is not None:
        return given
    pad, end = (setting(model, kwargs, name) for name in ("pad_token_id", "eos_token_id"))
    return private.padding_mask(model, kwargs["input_ids"], pad, end)


def _begun(sequences: torch.Tensor, ids: torch.Tensor | None, start: Any) -> int:
    """Tokens that texts `[B, L]` begin with: `start`, or the ids of the call, which `generate` puts it before or not.

    0 of results that have neither, as those of Whisper.
    """
    first = torch.as_tensor(start).view(-1, 1).to(sequences)
    beginnings = [first]
    if ids is not None:
        ids = ids.to(sequences)
        beginnings = [ids, torch.cat([first.expand(len(ids), 1), ids], 1)]
    for each in beginnings:
        rows = each.repeat_interleave(len(sequences) // len(each), 0)  # several texts of a prompt
        if torch.equal(sequences[..., : each.shape[1]], rows):
            return each.shape[1]
    return 0


def tokens_made(result: Any, kwargs: dict[str, Any], start: Any = None) -> int:
    """Tokens behind the prompts, in all rows; padding of texts that ended before others counts.

    0 where a `custom_generate` of the caller gave something else. `start` is the token that texts of an encoder-decoder
    begin with, and None of a decoder.
    """
    found = result.get("sequences") if isinstance(result, dict) else getattr(result, "sequences", None)
    sequences = result if isinstance(result, torch.Tensor) else found
    if sequences is None:
        return 0
    if start is not None:
        return int(sequences[..., _begun(sequences, kwargs.get("decoder_input_ids"), start) :].numel())
    ids = prompt_ids(kwargs)
    begun = kwargs.get("inputs_embeds") is None  # with the token that texts begin with, where there is no prompt
    given = int(begun) if ids is None else ids.shape[-1]
    return int(sequences.shape[:-1].numel() * (sequences.shape[-1] - given))  # batched continuously it is [1, B, L]
