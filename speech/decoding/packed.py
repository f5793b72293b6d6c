"""One pass for several texts or recordings: their positions stand one behind the other, and each sees only its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from mmaccel.cache.argument import cached
from mmaccel.patching import intercept_attention
from mmaccel.private import attention_name, uses_attention_interface

from .projections import split_heads

if TYPE_CHECKING:
    from ..families.adapter import SpeechAdapter

Keys = tuple[torch.Tensor, torch.Tensor]


@dataclass
class EncoderStates(BaseModelOutput):
    """Encoder output with the mask that the decoders of some families ask for."""

    attention_mask: torch.Tensor | None = None


def _own(_number: int, _module: Any, key: torch.Tensor, value: torch.Tensor) -> Keys:
    return key, value


@contextmanager
def packed_attention(
    modules: Sequence[Any], lengths: Sequence[int], keys: Callable[..., Keys] = _own
) -> Iterator[None]:
    """While open, attention of `modules` in this thread is each sequence's own, of `lengths` positions in one row.

    Nothing is padded: all other layers see one row of positions, and attention runs for one sequence after the other,
    by the function that the model's configuration asks for.

    Parameters
    ----------
    modules
        Attention modules of transformers' table.
    lengths
        New positions of each sequence.
    keys
        ``keys(number, module, key, value)`` are the keys and values `[1, H, T, d]` that sequence `number` attends to;
        by default those of its own new positions, which it is given.
    """

    def attend(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        size, found = module.head_dim, []  # some modules pad their heads
        for number, span in enumerate(spans):
            seen = keys(number, module, *(states[:, :, span, :size] for states in (key, value)))
            own = query[:, :, span, :size]
            out, _ = original(module, own, *seen, _causal(module, own, seen[0]), **kwargs)
            found.append(out)
        return F.pad(torch.cat(found, 1), (0, query.shape[-1] - size)), None

    ends = list(accumulate(lengths))
    spans = [slice(end - length, end) for length, end in zip(lengths, ends, strict=True)]
    with ExitStack() as stack:
        intercept_attention(stack, modules, attend, in_thread=True)  # not the user's own call of the model
        yield


def _causal(module: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """Which keys the last positions of a text see; None where they see all."""
    width, total = query.shape[2], key.shape[2]
    if not module.is_causal or width == 1:
        return None
    return torch.ones(width, total, dtype=torch.bool, device=query.device).tril(total - width)[None, None]


def can_pack(modules: Sequence[Any]) -> bool:
    """Whether :func:`packed_attention` suits attention modules: its masks are those of SDPA."""
    return bool(modules) and all(
        uses_attention_interface(one) and attention_name(one.config) == "sdpa" for one in modules
    )


def packs(adapter: SpeechAdapter) -> bool:
    """Whether passes of this model's decoder can be packed."""
    layers = getattr(adapter.target.get_decoder(), "layers", ())
    modules = [getattr(layer, name, None) for layer in layers for name in ("self_attn", "encoder_attn")]
    return None not in modules and can_pack(modules)


def packed_pass(
    adapter: SpeechAdapter,
    ids: Sequence[Sequence[int]],
    states: Sequence[torch.Tensor],
    caches: Sequence[EncoderDecoderCache],
) -> list[torch.Tensor]:
    """One pass of the decoder over the next tokens of several texts; equal to one pass each, up to rounding.

    Parameters
    ----------
    adapter
        Of the model.
    ids
        Next tokens of each text.
    states
        Encoder states `[1, T, D]` of each, whose keys and values are projected where its cache has none.
    caches
        Of each; they grow by the tokens.

    Returns
    -------
    list of torch.Tensor
        Logits `[1, tokens, V]` of each text.
    """
    layers, lengths = list(adapter.target.get_decoder().layers), [len(one) for one in ids]
    _project(adapter, states, caches)
    crossing = {id(layer.encoder_attn) for layer in layers}

    def keys(number: int, module: Any, key: torch.Tensor, value: torch.Tensor) -> Keys:
        if id(module) in crossing:
            held: Any = caches[number].cross_attention_cache.layers[module.layer_idx]
            return held.keys, held.values
        return caches[number].self_attention_cache.update(key, value, module.layer_idx)

    modules = [module for layer in layers for module in (layer.self_attn, layer.encoder_attn)]
    with packed_attention(modules, lengths, keys):
        output = adapter.target(**_inputs(ids, states, caches))
    return list(output.logits.split(lengths, 1))


def _inputs(
    ids: Sequence[Sequence[int]], states: Sequence[torch.Tensor], caches: Sequence[EncoderDecoderCache]
) -> dict[str, Any]:
    """Arguments of the pass; states, cross-attention cache and mask must be there, and are not looked at."""
    device = states[0].device
    places = [torch.arange(len(one)) + cache.get_seq_length() for one, cache in zip(ids, caches, strict=True)]
    return {
        "decoder_input_ids": torch.tensor([[token for one in ids for token in one]], device=device),
        "decoder_position_ids": torch.cat(places)[None].to(device),
        "decoder_attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
        "encoder_outputs": EncoderStates(last_hidden_state=states[0].clone()),
        **cached(EncoderDecoderCache(DynamicCache(), caches[0].cross_attention_cache)),
        "use_cache": True,
    }


def _project(adapter: SpeechAdapter, states: Sequence[torch.Tensor], caches: Sequence[EncoderDecoderCache]) -> None:
    """Fill the cross-attention caches that are empty: one product for the positions of all of them."""
    new = [(state, cache) for state, cache in zip(states, caches, strict=True) if not cache.is_updated]
    if not new:
        return
    lengths = [state.shape[1] for state, _ in new]
    packed = torch.cat([adapter.cross_input(state, 0) for state, _ in new], 1)
    for number, layer in enumerate(adapter.target.get_decoder().layers):
        attention = layer.encoder_attn
        pair = (split_heads(project(packed), attention.head_dim) for project in (attention.k_proj, attention.v_proj))
        for (_, cache), key, value in zip(new, *(one.split(lengths, 2) for one in pair), strict=True):
            cache.cross_attention_cache.update(key.contiguous(), value.contiguous(), number)
            cache.is_updated[number] = True
