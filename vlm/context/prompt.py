"""A prompt as the context store sees it: where it can be cut, and what each part of it contains."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from mmaccel.cache.argument import CACHE_NAMES
from mmaccel.cache.hook_state import why_incomparable
from mmaccel.cache.model_hash import content_hash, prefix_hashes
from mmaccel.decoding.custom_generate import is_drafted
from mmaccel.decoding.drafters.placeholders import placeholders
from mmaccel.decoding.setting import mask_of, prompt_ids, setting, why_adapted, why_no_cache
from mmaccel.decoding.unfit import contrasts, moving_rotary

from ..decoder.columns import COLUMNS
from ..decoder.generation import on_several_devices

BLOCK = 16  # tokens between two places to cut a prompt, as in vLLM
# Settings of `generate` with which it reads the prompt itself, as from nothing, writes it anew, or has to look at
# all of it.
OTHER_READING = (
    "cache_implementation", "prefill_chunk_size", "output_attentions", "output_hidden_states",
    "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "token_healing",
    "dola_layers", "constraints", "force_words_ids",
)  # fmt: skip
# Arguments of a model that say nothing of what a prompt contains.
OTHERS = {"input_ids", "attention_mask", *CACHE_NAMES, "use_cache", "logits_to_keep", "return_dict", "labels"}


def why_unstorable(text_config: Any, name: str) -> str | None:
    """Why a model's caches cannot be cut to a part of the prompt; None if they can."""
    if getattr(text_config, "prefix_lm", False):
        return f"{name} lets the tokens of a prompt see later ones (prefix_lm)"
    if getattr(text_config, "num_kv_shared_layers", 0):
        return f"layers of {name} share their keys, and a prompt is stored for each layer"
    for told in moving_rotary(text_config):
        return f"{name} turns its keys by the length of the whole prompt (rope_type {told['rope_type']!r})"
    layers = {type(layer) for layer in DynamicCache(config=text_config).layers}
    other = sorted(kind.__name__ for kind in layers - {DynamicLayer, DynamicSlidingWindowLayer})
    return f"{name} has layers with states of their own ({', '.join(other)}), which cannot be cut" if other else None


def unfit_for_context(model: Any, kwargs: dict[str, Any]) -> str | None:
    """Why a call of `generate` is left to the model; None if what is stored can stand for its prompt."""
    if on_several_devices(model) or model.device.type == "meta":
        return "the model's weights are on several devices, or not in memory"
    ids, mask = _ids(kwargs), kwargs.get("attention_mask")
    if ids is None or kwargs.get("inputs_embeds") is not None:
        return "it needs input_ids"
    if len(ids) != 1:
        return f"{len(ids)} prompts in a batch: one is looked up at a time"
    if mask is not None and not (mask.shape == ids.shape and bool(mask.all())):
        return "the prompt is padded, or has a mask of its own"
    if mask is None and not bool(mask_of(model, {**kwargs, "input_ids": ids}).all()):
        return "the prompt holds padding tokens, and no attention_mask says whether they count"
    for name in (*CACHE_NAMES, "position_ids", "assistant_model"):
        if kwargs.get(name) is not None:
            return f"{name} was given"
    loop = kwargs.get("custom_generate")
    if loop is not None and not is_drafted(loop):  # which may read all of a prompt behind what is stored, or no cache
        return "custom_generate was given"
    if setting(model, kwargs, "use_cache") is False:
        return "use_cache=False was given"
    for name in OTHER_READING:
        if setting(model, kwargs, name):
            return f"{name} was given"
    if contrasts(model, kwargs):
        return "penalty_alpha was given"
    if any(module.training for module in model.modules()):
        return "the model is in training, where dropout changes the keys: call model.eval() first"
    return why_no_cache(model) or why_adapted(model) or why_incomparable(model)


def _ids(kwargs: dict[str, Any]) -> torch.Tensor | None:
    ids = prompt_ids(kwargs)
    return ids if ids is not None and ids.ndim == 2 and ids.shape[1] > 1 else None


@dataclass
class ContextPrompt:
    """One prompt of a call of `generate`.

    Attributes
    ----------
    length
        Its tokens.
    stops
        For the hash of each prefix that it can be cut to, its number of tokens; ascending.
    shown
        First token and the one after the last of all that stands for pictures, videos or sound; None without any.
    content
        Names of the arguments that hold these.
    """

    length: int
    stops: dict[str, int]
    shown: tuple[int, int] | None
    content: tuple[str, ...]

    @classmethod
    def of(cls, adapter: Any, kwargs: dict[str, Any]) -> ContextPrompt:
        """The prompt of a call that :func:`unfit_for_context` lets pass."""
        ids = _ids(kwargs)
        assert ids is not None
        content = content_names(adapter, kwargs)
        shown = _shown(adapter, ids[0]) if content else None
        if content and shown is None:  # what was given may belong to any token
            shown = 0, ids.shape[1]
        length, first, last = ids.shape[1], *(shown or (0, 0))
        stops = [stop for stop in range(BLOCK, length + 1, BLOCK) if not first < stop < last or not content]
        stops = sorted({*stops, last} - {0} if content else stops)
        columns = torch.stack([ids[0], *(kwargs[name][0] for name in COLUMNS if kwargs.get(name) is not None)])
        before = [stop for stop in stops if stop <= first] if content else stops
        settings = settings_of(adapter, kwargs)
        start = content_hash(settings.items()) if settings else b""
        hashes = prefix_hashes(start, columns, before)
        if content:
            start = content_hash([*settings.items(), *((name, kwargs[name]) for name in content)])
            hashes.update(prefix_hashes(start, columns, [stop for stop in stops if stop >= last]))
        return cls(length, hashes, shown, content)

    def reusable(self, fewest: int) -> dict[str, int]:
        """The prefixes that leave at least a token to compute, and no picture; without any those of `fewest` tokens."""
        least = self.shown[1] if self.shown else fewest
        return {key: stop for key, stop in self.stops.items() if least <= stop < self.length}

    def go_on(self, kwargs: dict[str, Any], adapter: Any) -> None:
        """Change the arguments of a call into those of one whose cache holds a prefix with all pictures."""
        positions = own_positions(adapter, kwargs) if self.content else None
        delta = None if positions is None else positions[1:].amax((0, 2))[:, None] + 1 - self.length
        for part in (adapter.target, adapter.target.base_model):
            if hasattr(part, "rope_deltas"):  # otherwise a model goes on counting from an earlier prompt
                part.rope_deltas = delta
        for name in self.content:
            del kwargs[name]
        if positions is not None:
            kwargs["position_ids"] = positions


def own_positions(adapter: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Positions `[axes, B, L]` as the model gives them to the prompt of a call; None if they count up.

    Of a call that does not tell which tokens are of pictures, it counts them up like words.
    """
    takes = inspect.signature(adapter.target.forward).parameters
    untold = "mm_token_type_ids" in takes and kwargs.get("mm_token_type_ids") is None
    positions: torch.Tensor | None = None
    if hasattr(adapter, "positions") and not untold:
        positions = adapter.positions(kwargs)
    return positions


def content_names(adapter: Any, kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Arguments of a call that say what its prompt contains beside its tokens."""
    return tuple(name for name in _given(adapter, kwargs) if not is_setting(kwargs[name]))


def settings_of(adapter: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call that say how the model reads its prompt, such as the layer of the tower that counts."""
    return {name: kwargs[name] for name in _given(adapter, kwargs) if is_setting(kwargs[name])}


def _given(adapter: Any, kwargs: dict[str, Any]) -> list[str]:
    return sorted(name for name in _of_model(adapter) & kwargs.keys() if kwargs[name] is not None)


def is_setting(value: Any) -> bool:
    """Whether an argument is a number, a word or a list of these: a setting of the model, and no picture or sound."""
    values = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(part, bool | int | float | str) for part in values)


def _of_model(adapter: Any) -> set[str]:
    """Arguments of `generate` that are the model's, and tell more of a prompt than its tokens."""
    calls = (adapter.target.forward, adapter.target.base_model.forward)
    names = {name for call in calls for name in inspect.signature(call).parameters}
    return (names | set(getattr(adapter, "pixel_arguments", ()))) - OTHERS - {*COLUMNS, "kwargs"}


def _shown(adapter: Any, ids: torch.Tensor) -> tuple[int, int] | None:
    """First and last placeholder of a prompt, the last one exclusive."""
    config = adapter.target.config
    marks = getattr(config, "visual_indicator_token_ids", None) or ()  # of Ovis2, whose embeddings pictures bring
    known = {*placeholders(config), *marks}
    if hasattr(adapter, "token_id"):
        known |= {adapter.token_id(kind) for kind in ("image", "video")}
    places = torch.isin(ids, torch.tensor(sorted(known), device=ids.device)).nonzero()
    return (int(places[0]), int(places[-1]) + 1) if len(places) else None
