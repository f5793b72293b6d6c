"""A forward pass over some of the tokens, which attend to the kept keys and values of all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.cache import BranchCache
from mmaccel.errors import UnsupportedTargetError

from .families import FAMILIES, Family, bound, divisible_family
from .forecast import Layout
from .interception import Intercepted
from .steps import replace_method

Forward = Callable[..., Any]
KINDS = {"native": (None, None), "fp8": (torch.float8_e4m3fn, None), "cpu": (None, "cpu")}
BRANCHES = ("0", "1", "2", "3")  # forward passes of one step, in their order
# arguments of blocks that may have an entry per token
_PER_TOKEN = ("rotary_emb", "image_rotary_emb", "freqs_cis", "temb", "timestep", "modulate_index")


class PartialForward:
    """Makes a denoiser's forward work on chosen tokens only, until `stack` closes.

    A full pass within :meth:`keeping` keeps the keys and values of every self-attention. A pass within
    :meth:`only` computes hidden states, queries, keys and values for its tokens alone, overwrites theirs among the
    kept ones and attends to all. What the transformer returns is right at those tokens, and to be ignored elsewhere.

    Parameters
    ----------
    denoiser
        A transformer of a divisible family.
    stack
        Takes the hooks off again.
    kv
        How keys and values are kept: ``"native"``, ``"fp8"`` (a half or a quarter of the bytes) or ``"cpu"``.

    Raises
    ------
    UnsupportedTargetError
        If the family is unknown, or its blocks are compiled.
    """

    def __init__(self, denoiser: torch.nn.Module, stack: ExitStack, kv: str = "native") -> None:
        self.family = require_divisible(denoiser)
        blocks = self.family.block_list(denoiser)
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in (denoiser, *blocks)):
            raise UnsupportedTargetError(
                f"this {type(denoiser).__name__} is compiled, so that its tokens cannot be chosen anew in every step:"
                " load it again without compile(), or pass fraction=0 to choose among steps only"
            )
        self.kv = kv
        self.cache = BranchCache(len(blocks), BRANCHES, *KINDS[kv])
        self.branch: str | None = None
        self.tokens: torch.Tensor | None = None
        self.device = next(denoiser.parameters()).device
        self.total = self.text = 0
        self.masks: dict[str, torch.Tensor] = {}  # over all keys, of each branch
        for layer, block in enumerate(blocks):
            ends = (layer == 0, layer == len(blocks) - 1)
            replace_method(block, "forward", functools.partial(self._block, block, *ends), stack)
            attention = getattr(block, self.family.attention)
            replace_method(attention, "forward", functools.partial(self._attention, layer), stack)
        stack.callback(self.cache.reset)

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
        layout = Layout.of(denoiser, latents)
        tokens = layout.tokens(latents[:1]).shape[1]
        if self.family.text and text is not None:
            tokens += text.shape[1]
        config: Any = denoiser.config
        width = config.num_attention_heads * config.attention_head_dim
        blocks = len(self.family.block_list(denoiser))
        item_size = 1 if self.kv == "fp8" else latents.element_size()
        return int(2 * latents.shape[0] * tokens * width * blocks * item_size)

    def _run(self, branch: int, tokens: torch.Tensor | None, forward: Forward, args: Any, kwargs: Any) -> Any:
        self.branch, self.tokens = BRANCHES[branch], tokens
        try:
            with self.cache.branch(self.branch):
                return forward(*args, **kwargs)
        finally:
            self.branch = self.tokens = None

    def _block(self, block: Any, is_first: bool, is_last: bool, original: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.branch is None:
            return original(*args, **kwargs)
        call = bound(block, args, kwargs)
        given = call.arguments
        if is_first:
            self.total, self.device = given["hidden_states"].shape[1], given["hidden_states"].device
            self.text = given["encoder_hidden_states"].shape[1] if self.family.text else 0
        if self.tokens is None:
            return original(*args, **kwargs)
        if is_first:
            given["hidden_states"] = given["hidden_states"][:, self.tokens]
        for name in _PER_TOKEN:
            if name in given:
                given[name] = self._chosen(given[name])
        output = original(*call.args, **call.kwargs)
        return self._whole(output) if is_last else output

    def _chosen(self, value: Any) -> Any:
        """What belongs to the tokens: of a tensor that has one entry per token, or per token of text and picture."""
        if isinstance(value, tuple | list):
            return type(value)(self._chosen(part) for part in value)
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return value
        assert self.tokens is not None
        dim = 0 if value.ndim == 2 else 1
        if value.shape[dim] == self.total:
            return value.index_select(dim, self.tokens)
        if self.text and value.shape[dim] == self.total + self.text:
            return value.index_select(dim, self._places())
        return value

    def _places(self) -> torch.Tensor:
        """Indices of the tokens among those of text and picture, text included."""
        assert self.tokens is not None
        if not self.text:
            return self.tokens
        text = torch.arange(self.text, device=self.tokens.device)
        if self.family.text == "first":
            return torch.cat([text, self.tokens + self.text])
        return torch.cat([self.tokens, text + self.total])

    def _whole(self, output: Any) -> Any:
        """The last block's output at the places of its tokens, zeros elsewhere."""
        streams = self.family.returned(output)
        streams[self.family.hidden] = self._scattered(streams[self.family.hidden])
        return self.family.as_output(streams)

    def _scattered(self, hidden_states: torch.Tensor) -> torch.Tensor:
        batch, _, width = hidden_states.shape
        assert self.tokens is not None
        return hidden_states.new_zeros(batch, self.total, width).index_copy(1, self.tokens, hidden_states)

    def _mask(self, mask: torch.Tensor) -> torch.Tensor:
        """A mask over all keys: some blocks build theirs for the tokens they see."""
        assert self.branch is not None
        if self.tokens is None:
            self.masks[self.branch] = mask
        return self.masks[self.branch]

    def _attention(self, layer: int, original: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.branch is None:
            return original(*args, **kwargs)

        def attend(
            function: Forward, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
        ) -> torch.Tensor:
            places = None if self.tokens is None else self._places()
            key, value = self.cache.write(layer, key, value, places)
            if more.get("attn_mask") is not None:
                more["attn_mask"] = self._mask(more["attn_mask"])
            result: torch.Tensor = function(query, key, value, *rest, **more)
            return result

        with Intercepted(attend):
            return original(*args, **kwargs)


def require_divisible(denoiser: torch.nn.Module) -> Family:
    """The family of a transformer whose tokens can be computed apart.

    Raises
    ------
    UnsupportedTargetError
        Lists the families.
    """
    family = divisible_family(denoiser)
    if family is None:
        known = ", ".join(family.name for family in FAMILIES.values() if family.is_divisible)
        raise UnsupportedTargetError(
            f"the tokens of {type(denoiser).__name__} cannot be computed apart, only those of {known}:"
            " pass fraction=0 to choose among steps only"
        )
    return family
