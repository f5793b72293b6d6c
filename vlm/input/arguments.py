"""The arguments of `generate` once its prompt was shortened."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch

from mmaccel.decoding.setting import pass_device, prompt_ids, setting, why_prepared
from mmaccel.errors import PromptError, SettingError

from ..decoder.columns import COLUMNS
from ..decoder.generation import new_tokens
from .prompt import Prompt
from .whole_prompt import restore

# Settings whose guesses come with the first pass, as token ids.
GUESSING = ("prompt_lookup_num_tokens", "assistant_model", "assistant_early_exit", "use_mtp")
# What transformers leaves out where a prompt comes as embeddings, with the values that change nothing.
OF_PROMPT = {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}
FEATURES = "mm_encoder_outputs"  # of the vision tower, in place of pixels
WHOLE = ("output_hidden_states",)  # of every token of the prompt: Qwen-Omni makes its speech of them


def guessing(target: Any, kwargs: dict[str, Any]) -> str | None:
    """The setting by which guesses come with the first pass of a call; None without any."""
    return next((name for name in GUESSING if setting(target, kwargs, name)), None)


def bring(target: Any, kwargs: dict[str, Any]) -> torch.device | None:
    """Bring what a call was given to the model, as `generate` does in each pass, and call its prompt `input_ids`.

    Returns
    -------
    Where the prompt was, and the tokens of its answer are wanted; None without token ids.
    """
    if (ids := prompt_ids(kwargs)) is None:
        return None
    if kwargs.get("inputs") is not None:
        kwargs["input_ids"] = kwargs.pop("inputs")
    device = pass_device(target, ids)
    kwargs.update({name: value.to(device) for name, value in kwargs.items() if isinstance(value, torch.Tensor)})
    return ids.device


def is_shorter(prompt: Prompt) -> bool:
    """Whether tokens of a prompt were left out before the decoder, in this turn or an earlier one."""
    return int(prompt.attention_mask.sum()) < sum(whole for whole, _ in prompt.full_lengths)


def unfit_prompt(target: Any, kwargs: dict[str, Any], reads_tower: bool) -> str | None:
    """Why the prompt of a call is left as it is; None if it can be shortened.

    `reads_tower` is whether that takes more of the vision tower than the features of pictures and videos.

    Raises
    ------
    PromptError
        If it is no batch of prompts.
    """
    if kwargs.get("input_ids") is None or kwargs.get("inputs_embeds") is not None:
        return "it needs input_ids, not inputs_embeds"
    if kwargs["input_ids"].dim() != 2:
        raise PromptError(f"input_ids has the shape {[*kwargs['input_ids'].shape]}: give [batch, tokens]")
    if setting(target, kwargs, "prefill_chunk_size") is not None:  # transformers cuts up token ids only
        return "prefill_chunk_size was given"
    if reads_tower and kwargs.get(FEATURES):
        return f"it reads inside the vision tower, which does not run where {FEATURES} are given: give pixels"
    return why_prepared(target)


def unfit_beside(target: Any, kwargs: dict[str, Any], inputs: dict[str, Any]) -> str | None:
    """What a call was given that fits no shortened prompt, or no embeddings of one; None without any."""
    names = ((*GUESSING, *OF_PROMPT) if "inputs_embeds" in inputs else ()) + (WHOLE if len(inputs) > 1 else ())
    given = {name: setting(target, kwargs, name) for name in names}
    return next((name for name, value in given.items() if value and value != OF_PROMPT.get(name)), None)


def replace(
    kwargs: dict[str, Any],
    brought: dict[str, Any],
    prompt: Prompt,
    target: Any,
    encoded: Iterable[str],
    inputs: dict[str, Any],
) -> None:
    """Put a prompt into the arguments of `generate`; the number of new tokens stays the same.

    Parameters
    ----------
    kwargs
        The arguments, which are changed.
    brought
        The same, as :func:`bring` leaves them.
    prompt
        The shortened prompt.
    target
        The model, whose generation config has what is not given.
    encoded
        Names of arguments that describe pictures and videos, which the prompt holds already.
    inputs
        Arguments that stand for the prompt: token ids, and embeddings where it has visual tokens.

    Raises
    ------
    SettingError
        If `max_length` leaves no room after the prompt as it was given.
    """
    kwargs.clear()
    kwargs.update(brought)
    length = prompt.full_ids.shape[1]
    limit = setting(target, kwargs, "max_length")
    if limit is not None and limit <= length and setting(target, kwargs, "max_new_tokens") is None:
        raise SettingError(
            f"max_length={limit} leaves no room after the {length} tokens of the prompt: give max_new_tokens="
        )
    new = new_tokens(target, kwargs, length)
    for name in (*encoded, "max_length", "position_ids"):
        kwargs.pop(name, None)
    for name in COLUMNS:
        if kwargs.get(name) is not None:
            kwargs[name] = prompt.of_columns(kwargs[name])
    kwargs.update(inputs, attention_mask=prompt.attention_mask)
    if "max_new_tokens" in kwargs or setting(target, kwargs, "max_new_tokens") is None:
        _count(kwargs, "max_new_tokens", new, "max_length")
    restore(kwargs, prompt, target)
    least = setting(target, kwargs, "min_length")
    if least:  # it counts the prompt as it was given
        fewest = setting(target, kwargs, "min_new_tokens") or 0
        _count(kwargs, "min_new_tokens", max(fewest, least - length), "min_length")
    if prompt.position_ids is not None:
        kwargs["position_ids"] = prompt.position_ids


def _count(kwargs: dict[str, Any], name: str, new: int, whole: str) -> None:
    """Say a length by the setting that counts new tokens, in place of the one that counts the `whole` text.

    Beside a `generation_config` transformers warns of settings as arguments: it goes into a copy of that.
    """
    kwargs.pop(whole, None)
    config = kwargs.get("generation_config")
    if config is None or name in kwargs:
        kwargs[name] = new
        return
    kwargs["generation_config"] = config = copy.copy(config)
    setattr(config, name, new)
    setattr(config, whole, None)
