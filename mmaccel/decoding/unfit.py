"""Which calls of `generate` are left to the model's own loop, and why."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, MaxLengthCriteria

from mmaccel import private
from mmaccel.cache.argument import cache_of, own_cache

from .generated_text import copied, is_of_transformers
from .passes.rollback import WITH_STATE, can_go_back, reads_on
from .setting import pass_device, setting, why_adapted, why_no_cache

# Processors of transformers that look at more than the row they are given.
OF_A_BATCH = (
    "ClassifierFreeGuidanceLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "WhisperNoSpeechDetection",
)

WITH_OUTPUTS = ("IdeficsForVisionText2Text",)  # classes that go on from more of a pass than its cache
READS_ON = "layers read on"  # in the memory of a session
MOVING = ("dynamic", "longrope")  # rotary embeddings whose frequencies depend on the length of the text

# Settings that ask for another loop of `generate`, or for another cache, and what they are where they do not.
OTHER_LOOPS: dict[str, Any] = {
    "num_beams": 1,
    "constraints": None,
    "force_words_ids": None,
    "dola_layers": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "use_mtp": False,
    "cache_implementation": None,
    "prefill_chunk_size": None,
    "token_healing": False,
}


def reason_to_leave(model: Any, kwargs: dict[str, Any]) -> str | None:
    """Why this call must be left to the model, as far as its arguments tell."""
    for name in ("assistant_model", "custom_generate"):
        if kwargs.get(name) is not None:
            return f"{name} was given"
    for name, plain in OTHER_LOOPS.items():
        value = setting(model, kwargs, name)
        if value is not None and value != plain:
            return f"{name}={value!r}"
    if contrasts(model, kwargs):
        return f"penalty_alpha={setting(model, kwargs, 'penalty_alpha')!r}"
    if private.is_synced(model, kwargs.get("synced_gpus")):
        return "all ranks make the same passes (synced_gpus)"
    return None


def contrasts(model: Any, kwargs: dict[str, Any]) -> bool:
    """Whether `generate` searches contrastively: with a penalty, of several tokens, and not in a draw."""
    alpha, candidates = (setting(model, kwargs, name) for name in ("penalty_alpha", "top_k"))
    return (alpha or 0) > 0 and (candidates is None or candidates > 1) and not setting(model, kwargs, "do_sample")


def unfit(model: Any, input_ids: torch.Tensor, config: Any, kwargs: dict[str, Any]) -> str | None:
    """Why this call must be left to the model, as far as what `generate` made of its arguments tells."""
    cache = cache_of(kwargs)
    if why := why_no_cache(model) or why_adapted(model):
        return why
    if config.output_attentions or config.output_hidden_states:
        return "attentions or hidden states are asked for"
    own = own_cache(cache)
    if model.config.is_encoder_decoder != isinstance(cache, EncoderDecoderCache):
        own = None
    encoded = (kwargs.get(name) is not None for name in ("encoder_outputs", "encoder_hidden_states"))
    if not model.config.is_encoder_decoder and any(encoded):
        return "a decoder that is used alone is given outputs of an encoder"
    if not kwargs.get("use_cache", True):
        return "use_cache=False, as given or as configs of MPT have it, leaves no cache to take drafts back from"
    if type(own) is not DynamicCache or not can_go_back(own):
        return "there is no cache to take drafts back from"
    if own.offloading:
        return "the cache is off-loaded, and drafts would have to move what it keeps elsewhere"
    if kwargs.get("inputs_embeds") is not None and own.get_seq_length():
        return "embeddings go on from a cache"
    mask = prompt_mask(model, kwargs)
    if own.get_seq_length() and input_ids.shape[1] != _length(mask, config):
        return "only the new tokens of a text were given, and those before are in the cache alone"
    if model.config.is_encoder_decoder:
        hides = mask is not None and (mask.ndim != 2 or not bool(mask.all()))
        return "the prompt is padded" if hides or kwargs.get("decoder_position_ids") is not None else None
    if mask is not None and (mask.ndim != 2 or not bool(mask[:, -1].all())):
        return "the prompt is padded at its end, or has a mask of its own"
    return None


def _length(mask: torch.Tensor | None, config: Any) -> int:
    """Tokens of a text, as its mask has them; `generate` drops one that shows all, and remembers how long it was."""
    return int(getattr(config, "_mask_length", -1)) if mask is None else mask.shape[1]


def unfit_model(model: Any, input_ids: torch.Tensor, config: Any, kwargs: dict[str, Any]) -> str | None:
    """Why drafts would change what this model writes in a text as long as this one may become."""
    name, limit = type(model).__name__, _steady_length(model.config.get_text_config(decoder=True))
    if any(cls.__name__ in WITH_OUTPUTS for cls in type(model).__mro__):
        return f"{name} goes on from more of a pass than its cache"
    embeds, given = kwargs.get("inputs_embeds"), input_ids.shape[1]
    unseen = 0 if embeds is None else max(0, embeds.shape[1] - given)
    if limit is not None and config.max_length + unseen > limit:
        return f"beyond {limit} tokens {name} turns keys otherwise, and this text may have {config.max_length + unseen}"
    return None


def _steady_length(text_config: Any) -> int | None:
    """Tokens of a text up to which its keys are turned alike; None if those of all texts are."""
    limits = [getattr(text_config, "original_max_position_embeddings", None)]  # of Phi, which begins anew behind it
    for told in moving_rotary(text_config):
        limits.append(told.get("original_max_position_embeddings") or text_config.max_position_embeddings)
    return min((limit for limit in limits if limit is not None), default=None)


def moving_rotary(text_config: Any) -> list[dict[str, Any]]:
    """Parameters of the rotary embeddings that turn keys by the length of the text; some layers may have their own."""
    told = getattr(text_config, "rope_parameters", None) or {}
    return [one for one in (told, *told.values()) if isinstance(one, dict) and one.get("rope_type") in MOVING]


def unfit_states(model: Any, input_ids: torch.Tensor, cache: Any, memory: dict[str, Any]) -> str | None:
    """Why drafts cannot be taken back from layers with a state; looked at once, and kept in the memory of a session."""
    own = own_cache(cache)
    if not any(type(layer) in WITH_STATE for layer in own.layers):
        return None
    if READS_ON not in memory:
        rows = len(input_ids)  # as adapters of peft may be named for each
        memory[READS_ON] = reads_on(model, pass_device(model, input_ids), rows)
    return None if memory[READS_ON] else f"the layers of {type(model).__name__} read several tokens without their state"


def prompt_mask(model: Any, kwargs: dict[str, Any]) -> Any:
    """Which tokens of the prompt are no padding, `[B, L]`; None where that was not said."""
    return kwargs.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")


def is_spread(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether there are several texts, or a padded one."""
    mask = prompt_mask(model, kwargs)
    return input_ids.shape[0] > 1 or (mask is not None and not bool(mask.all()))


def unfit_for_batch(processors: Any, criteria: Any, streamer: Any) -> str | None:
    """Why the texts of a batch cannot be written one by one."""
    if streamer is not None:
        return f"{type(streamer).__name__} is given a token of every text at a time"
    for found in (*processors, *criteria):
        name = _name(found)
        if is_of_transformers(found):
            if name in OF_A_BATCH:
                return f"{name} looks at the whole batch: give one text at a time for drafts"
        elif not getattr(found, "rowwise", False):
            return f"{name} may look at the whole batch: say rowwise = True in its class if it looks at each row alone"
    for part in (*processors, *(each for each in criteria if not is_of_transformers(each))):
        try:
            copied([part])
        except Exception as error:  # of whatever kind: a lock, a generator, a parser of another language
            return f"{_name(part)} cannot be copied for each text: {error}"
    ends = any(not isinstance(each, MaxLengthCriteria) for each in criteria)
    if ends and not any(hasattr(each, "eos_token_id") for each in criteria):
        return "without eos_token_id a text that a stopping criterion ended is written on until all have ended"
    return None


def _name(part: Any) -> str:
    """The class of a processor or a stopping criterion; of the user's own where a session has put one before it."""
    return type(getattr(part, "inner", part)).__name__
