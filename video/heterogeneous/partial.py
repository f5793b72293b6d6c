"""A forward pass over some of the tokens, which attend to the kept keys and values of all."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import wrap_forward

from ..blocks.token_subset import Forward, KeysValues, TokenSubset, refuse_perturbed, refuse_skipped, require_divisible
from ..families.families import Family, begins_again, bound, is_controlled, layout_of

ADVICE = "pass fraction=0, so that every step computes all tokens or none"


def require_partial(denoiser: torch.nn.Module) -> Family:
    """The family of a transformer of which a pass may compute some tokens, in all blocks the same.

    Raises
    ------
    UnsupportedTargetError
        If tokens cannot be computed apart, or the last blocks begin again at all tokens.
    """
    family = require_divisible(denoiser, ADVICE)
    if begins_again(denoiser):
        raise UnsupportedTargetError(
            f"the last blocks of {type(denoiser).__name__} begin again at all tokens: {ADVICE}, or use video.TokenCache"
        )
    return family


class PartialForward:
    """Makes a denoiser's forward work on chosen tokens only, until `stack` closes.

    :meth:`keeping` makes a full pass and keeps the keys and values of every self-attention. :meth:`only` computes
    hidden states, queries, keys and values for its tokens alone, overwrites the kept keys and values of these tokens
    and attends to those of all. The transformer's output is then valid at those tokens only.

    Parameters
    ----------
    denoiser
        A transformer of a divisible family.
    stack
        Removes the hooks at its end.
    kv
        How keys and values are kept: ``"native"``, ``"fp8"`` (a half or a quarter of the bytes) or ``"cpu"``.

    Raises
    ------
    UnsupportedTargetError
        If the family is unknown, its blocks are compiled, or its last blocks begin again at all tokens; in a pass, if
        it is given what a ControlNet made.
    """

    def __init__(self, denoiser: torch.nn.Module, stack: ExitStack, kv: str = "native") -> None:
        self.family = require_partial(denoiser)
        blocks = self.family.block_list(denoiser)
        self.denoiser, self.kv = denoiser, kv
        self.keys = KeysValues(len(blocks), kv)
        self.cache = self.keys.cache
        self.branch: int | None = None
        self.tokens: torch.Tensor | None = None
        self.subset: TokenSubset | None = None
        self.total = self.text = 0
        for layer, block in enumerate(blocks):
            ends = (layer == 0, layer == len(blocks) - 1)
            wrap_forward(stack, block, functools.partial(self._block, block, *ends))
            attention = getattr(block, self.family.attention)
            wrap_forward(stack, attention, functools.partial(self._attention, layer, attention))
        stack.callback(self.keys.reset)

    def keeping(self, branch: int, forward: Forward, args: Any, kwargs: Any) -> Any:
        """A full pass that keeps its keys and values."""
        return self._run(branch, None, forward, args, kwargs)

    def only(self, tokens: torch.Tensor, branch: int, forward: Forward, args: Any, kwargs: Any) -> Any:
        """A pass over `tokens`, sorted indices `[A]`."""
        return self._run(branch, tokens, forward, args, kwargs)

    def estimate_bytes(self, denoiser: torch.nn.Module, args: Any, kwargs: Any) -> int:
        """Bytes of the keys and values that this forward pass would keep."""
        given = bound(denoiser, args, kwargs).arguments
        latents, text = given["hidden_states"], given.get("encoder_hidden_states")
        layout = layout_of(denoiser, latents)
        tokens = layout.tokens(latents[:1]).shape[1]
        if self.family.text and text is not None:
            tokens += text.shape[1]
        config: Any = denoiser.config
        width = config.num_attention_heads * config.attention_head_dim
        blocks = len(self.family.block_list(denoiser))
        item_size = 1 if self.kv == "fp8" else latents.element_size()
        return int(2 * latents.shape[0] * tokens * width * blocks * item_size)

    def _run(self, branch: int, tokens: torch.Tensor | None, forward: Forward, args: Any, kwargs: Any) -> Any:
        if is_controlled(self.denoiser, args, kwargs):
            raise UnsupportedTargetError(f"a ControlNet adds to all tokens between the blocks: {ADVICE}")
        blocks = self.family.block_list(self.denoiser)
        refuse_skipped(blocks[0], blocks[-1])
        self.branch, self.tokens = branch, tokens
        try:
            return forward(*args, **kwargs)
        finally:
            self.branch = self.tokens = self.subset = None

    def _block(self, block: Any, is_first: bool, is_last: bool, original: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.branch is None:
            return original(*args, **kwargs)
        call = bound(block, args, kwargs)
        given = call.arguments
        if is_first:
            self.total = given["hidden_states"].shape[1]
            self.text = given["encoder_hidden_states"].shape[1] if self.family.text else 0
        if self.tokens is None:
            return original(*args, **kwargs)
        if is_first:
            hidden = given["hidden_states"]
            self.tokens = self.tokens.to(hidden.device)  # chosen where the sampler steps, which may be another GPU
            self.subset = TokenSubset(self.tokens, self.total, self.text, self.family.text)
            given["hidden_states"] = hidden[:, self.tokens]
        assert self.subset is not None
        self.subset.choose(given)
        output = original(*call.args, **call.kwargs)
        return self._whole(output) if is_last else output

    def _whole(self, output: Any) -> Any:
        """The last block's output at the places of its tokens, zeros elsewhere."""
        streams = self.family.returned(output)
        streams[self.family.hidden] = self._scattered(streams[self.family.hidden])
        return self.family.as_output(streams)

    def _scattered(self, hidden_states: torch.Tensor) -> torch.Tensor:
        batch, _, width = hidden_states.shape
        assert self.tokens is not None
        tokens = self.tokens.to(hidden_states.device)
        return hidden_states.new_zeros(batch, self.total, width).index_copy(1, tokens, hidden_states)

    def _attention(self, layer: int, attention: Any, original: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.branch is None:
            return original(*args, **kwargs)
        refuse_perturbed(attention)
        return self.keys.attend(layer, self.branch, self.subset, original, args, kwargs)


def pinned_tokens(call: dict[str, Any]) -> torch.Tensor | None:
    """Tokens `[S]` that image-to-video holds at the given picture: their own timestep is 0 where others' is not."""
    timestep = call.get("timestep")
    if not isinstance(timestep, torch.Tensor) or timestep.ndim != 2:
        return None
    pinned = (timestep == 0).all(0)
    return pinned if bool(pinned.any()) and not bool(pinned.all()) else None
