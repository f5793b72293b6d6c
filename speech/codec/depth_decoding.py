"""The codes of one frame after the other, by the depth decoder of a speech generator; exact."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from accelerate.utils import align_module_device
from transformers import DynamicCache

from mmaccel.cache.argument import cached
from mmaccel.decoding.setting import setting
from mmaccel.patching import wrap_in_thread


class DepthDecoding:
    """The `generate` of a depth decoder, prepared once for all frames instead of once for each.

    For each frame of 80 ms, CSM lets its depth decoder generate a text of one token for each codebook, with all the
    preparation of `generate`, and with a copy of the weights of a codebook's head for each token. Here the settings and
    processors of the first frame serve the others, and heads are used where they lie. The same tokens are drawn from
    the same random state. Where a frame begins with what the decoder takes for padding, or a cache of another kind is
    asked for, such as the static one of compiled passes, its own `generate` runs.

    Parameters
    ----------
    decoder
        A `CsmDepthDecoderForCausalLM`.
    """

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self._processors: Any = None
        self._samples = False

    def attach(self, stack: ExitStack) -> None:
        """Take the place of the decoder's `generate` in this thread until `stack` closes."""
        wrap_in_thread(stack, self.decoder, "generate", self._generate)

    def _generate(
        self, original: Callable[..., Any], input_ids: torch.Tensor, backbone_last_hidden_state: torch.Tensor
    ) -> Any:
        pad = self.decoder.generation_config.pad_token_id
        has_padding = pad is not None and (input_ids == pad).any()
        if has_padding or setting(self.decoder, {}, "cache_implementation") is not None:
            return original(input_ids=input_ids, backbone_last_hidden_state=backbone_last_hidden_state)
        if self._processors is not None:
            return self._frame(input_ids, backbone_last_hidden_state)

        def prepared(_model: Any, ids: torch.Tensor, *, logits_processor: Any, generation_config: Any, **_: Any) -> Any:
            self._processors, self._samples = logits_processor, generation_config.do_sample
            return self._frame(ids, backbone_last_hidden_state)

        return original(
            input_ids=input_ids, backbone_last_hidden_state=backbone_last_hidden_state, custom_generate=prepared
        )

    def _frame(self, ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Codes behind a placeholder and the first code, `[B, 2]`; returns all, `[B, 1 + codebooks]`."""
        model, cache, more = self.decoder.model, DynamicCache(), {"backbone_last_hidden_state": states}
        fresh = ids
        head = self.decoder.codebooks_head
        with align_module_device(head):  # off-loaded, its weights are away between its own calls
            for weight in head.weight:  # [D, V] of each further codebook
                output = model(input_ids=fresh, **cached(cache), use_cache=True, **more)
                scores = self._processors(ids, (output.last_hidden_state[:, -1] @ weight).float())
                fresh, more = self._drawn(scores), {}
                ids = torch.cat([ids, fresh], 1)
        return ids

    def _drawn(self, scores: torch.Tensor) -> torch.Tensor:
        if self._samples:
            return torch.multinomial(scores.softmax(-1), 1)
        return scores.argmax(-1, keepdim=True)
