"""The attention function that a session gives to the decoder layers of one model."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import UNKNOWN_ARGUMENTS

from .call import AttentionCall, GenerateRun
from .rows import left_padding

if TYPE_CHECKING:
    from .method import DecoderMethod


class SessionAttention:
    """Asks each method to attend, and runs transformers' own attention where none does.

    Attributes
    ----------
    active
        Whether the session is attached, and the model's attention is still the one that it stands before.
    run
        The call of `generate` that this thread makes.
    prompts_only
        Whether no method has a part in what comes after the prompt.
    heads
        Heads of queries in the last pass of several tokens: those of this process, where several share them.
    """

    def __init__(self, methods: Sequence[DecoderMethod]) -> None:
        self.methods = methods
        self.prompts_only = not any(method.decodes for method in methods)
        self._attends = any(method.attends for method in methods)
        self.active = True
        self.heads = 0
        # By thread: others may call the model itself meanwhile.
        self._runs: dict[int, GenerateRun] = {}
        self._updated: dict[int, weakref.ref[Any] | None] = {}
        # Where rows begin by a mask, of the two newest: layers with windows and those without take turns.
        self._known: deque[tuple[weakref.ref[torch.Tensor], tuple[int, ...], list[int] | None]] = deque(maxlen=2)

    def __deepcopy__(self, memo: dict[int, Any]) -> SessionAttention:
        return self  # copies of a cache are read by the same attention

    @property
    def run(self) -> GenerateRun | None:
        return self._runs.get(threading.get_ident())

    @run.setter
    def run(self, run: GenerateRun | None) -> None:
        self._runs = {} if run is None else {threading.get_ident(): run}  # one at a time

    def updated(self, layer: Any) -> None:
        """Note the views that one of our cache layers returned, which the next call receives."""
        # detached, no call would take it away
        self._updated[threading.get_ident()] = weakref.ref(layer) if self.active else None

    def __call__(
        self,
        original: Callable[..., Any],
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """For :func:`mmaccel.patching.intercept_attention`; `[B, M, Hq, D]`, and None for the weights."""
        more = {"scaling": scaling, "dropout": dropout, "is_causal": is_causal, **kwargs}
        if self.prompts_only and attention_mask is None and query.shape[2] == 1:
            self._count_step(query, key)  # and nothing else: on a GPU, Python sets the pace of such steps
            return original(module, query, key, value, None, **more)[0], None

        given = query, key, value

        def plain() -> torch.Tensor:
            return original(module, *given, attention_mask, **more)[0]

        self.heads = query.shape[1]
        cached = self._cached(key)
        if cached is None and value.dtype != key.dtype:  # under autocast, where torch does so itself
            query, key = query.to(value.dtype), key.to(value.dtype)
        run = GenerateRun() if self.run is None else self.run
        index = int(module.layer_idx)
        call = AttentionCall(index, query, key, value, attention_mask, scaling, cached, None, plain, run)
        reason = _unsuited(module, call, dropout, is_causal, kwargs)
        if reason and call.evicted is None:
            if self._attends and reason != "gradients" and reason not in run.unsuited:
                run.unsuited.add(reason)
                run.warn(f"layer {index} and others like it ran plainly: {reason}")
            call.count_pairs()
            return plain(), None
        call.starts = self._starts(call)
        output = next((out for out in (method.attend(call) for method in self.methods) if out is not None), None)
        if output is None:
            call.count_pairs()
            result = plain()
        else:
            result = output.transpose(1, 2).contiguous()
        for method in self.methods:
            method.after(call)
        return result, None

    def _count_step(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """A step of one token, which no method has a part in."""
        if self.run is not None:
            pairs = query.shape[0] * query.shape[1] * key.shape[2]
            self.run.plain_keys.add(pairs)
            self.run.keys.add(pairs)

    def _cached(self, key: torch.Tensor) -> Any:
        """The layer of our cache whose views these keys are."""
        updated = self._updated.pop(threading.get_ident(), None)
        layer = None if updated is None else updated()
        if layer is not None and layer.current is not key:
            raise UnsupportedTargetError(
                "this model changes its keys between the cache and attention: use vlm.SparsePrefill only"
            )
        return layer

    def _starts(self, call: AttentionCall) -> list[int] | None:
        if call.evicted is not None:
            if call.queries > 1 and call.mask is not None and call.mask.dtype == torch.bool:
                seen = call.mask[:, 0, -1, -call.evicted.appended :]
                if not bool(seen.all()):  # a later turn with padding of its own, or after answers that ended early
                    call.evicted.hide(seen.expand(call.query.shape[0], -1))
            return call.evicted.starts
        sizes = (call.query.shape[0], call.queries, call.keys)
        if call.mask is None:
            return left_padding(None, *sizes)
        for mask, known, starts in [*self._known]:
            if mask() is call.mask and known == sizes:
                return starts  # layers get the same mask: it is read back from the device once
        found = left_padding(call.mask, *sizes)
        self._known.append((weakref.ref(call.mask), sizes, found))
        return found


def _unsuited(
    module: torch.nn.Module, call: AttentionCall, dropout: float, is_causal: bool | None, kwargs: dict[str, Any]
) -> str | None:
    """Why no method can take this call, or None."""
    unknown = [name for name in UNKNOWN_ARGUMENTS if kwargs.get(name) is not None]
    if unknown:
        return f"its attention has {', '.join(unknown)}"
    window = kwargs.get("sliding_window")
    if window is not None and window <= call.keys:  # what is full holds no more than the window
        return "it has a sliding window"
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        return "its attention is not causal"
    if dropout:
        return "dropout is on: call model.eval()"
    if call.key.shape != call.value.shape or call.query.shape[1] % call.key.shape[1]:
        return "its keys and values differ in shape"
    if torch.is_grad_enabled() and (call.query.requires_grad or call.key.requires_grad):
        return "gradients"
    return None
