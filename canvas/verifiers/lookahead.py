"""Lookahead: passes that a pipeline with random noise will make, computed together before it asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.cache.argument import cache_of, cached
from mmaccel.stepping.tensors import count_bytes, tensors


@dataclass
class Known:
    """A pass: what went in, a canvas `[B, L]` and the logits before it `[B, L, V]`, and the logits that came out."""

    canvas: torch.Tensor
    before: torch.Tensor | None
    logits: torch.Tensor


class Lookahead:
    """Gives a pipeline the logits that it asks for, from passes over several of its next canvases at once.

    A scheduler's noise is known ahead: a copy of the generator draws it. So the next canvases follow from logits that
    earlier passes gave for the same steps; each pass improves those (a Picard iteration over the steps). The pipeline
    makes every step itself, and gets logits only of a pass whose input was the one that it asks for: the same tokens,
    and for self-conditioning the same chances, each to the rounding of the weights.

    Parameters
    ----------
    drafts
        The most canvases in one pass.
    scheduler
        Of the pipeline.
    dtype
        Of the model's weights, to which it rounds chances; it gives its logits in float32. Default float32.

    Attributes
    ----------
    passes, asked, canvases : int
        Passes that were made, passes that the pipeline asked for, and canvases that were computed.
    most_bytes : int
        The most that was kept, of passes and of the cache that is repeated for several canvases.
    warnings : list of str
        Why a run was plain.
    """

    def __init__(self, drafts: int, scheduler: Any, dtype: torch.dtype = torch.float32) -> None:
        self.drafts, self.scheduler, self.rounding = drafts, scheduler, torch.finfo(dtype).eps
        self.begin()

    def begin(self) -> None:
        """Forget the last run."""
        self.passes = self.asked = self.canvases = self.step = self.most_bytes = 0
        self.known: dict[int, Known] = {}  # by number of the step
        self.caches: dict[int, Any] = {}  # the one cache of this canvas that was repeated last, by how often
        self.told: dict[str, Any] | None = None  # what the scheduler is told beside logits and canvas
        self.warnings: list[str] = []
        if getattr(self.scheduler.config, "corrector_steps", 0):
            self.warnings = ["canvas.FreeDave ran plainly: it foresees no corrector steps; give corrector_steps=0"]

    def note(self, kwargs: dict[str, Any]) -> None:
        """Before each of the scheduler's steps: how it is called."""
        self.told = {k: v for k, v in kwargs.items() if k not in ("model_output", "timestep", "sample")}
        self.step = int(kwargs["timestep"]) + 1

    def compute(self, original: Callable[..., Any], kwargs: dict[str, Any]) -> torch.Tensor:
        """Logits `[B, L, V]` of the canvas that the pipeline asks for."""
        canvas, before = kwargs["decoder_input_ids"], kwargs["self_conditioning_logits"]
        self.asked += 1
        if before is None:  # a canvas begins
            self.step, self.known, self.caches = 0, {}, {}
        found = self.known.get(self.step)
        if found is not None and self._same(found, canvas, before):
            return found.logits
        states = self._drafted(canvas, before)
        logits = self._computed(original, kwargs, states)
        later = {step: known for step, known in self.known.items() if step >= self.step + len(states)}
        new = {self.step + n: Known(*state, logits[:, n]) for n, state in enumerate(states)}
        self.known = {**new, **later}
        self.most_bytes = max(self.most_bytes, self._nbytes())
        return logits[:, 0]

    def _nbytes(self) -> int:
        """Bytes held; what one pass gave and another got is one tensor."""
        passes = {x.data_ptr(): x for known in self.known.values() for x in tensors(list(vars(known).values()))}
        layers = (layer for cache in self.caches.values() for layer in cache.layers)
        return count_bytes(passes, [(layer.keys, layer.values) for layer in layers])

    def _same(self, known: Known, canvas: torch.Tensor, before: torch.Tensor) -> bool:
        """Whether a pass over what is known is the pass that is asked for."""
        if known.before is None or not torch.equal(known.canvas, canvas):
            return False
        found, asked = (logits.float().softmax(-1) for logits in (known.before, before))
        return torch.allclose(found, asked, rtol=self.rounding, atol=1e-6)

    def _drafted(self, canvas: torch.Tensor, before: torch.Tensor | None) -> list[tuple[Any, Any]]:
        """The canvas and those after it, each with the logits before it."""
        states = [(canvas, before)]
        if not self.known or self.told is None or self.warnings:
            return states
        twin, told = _twin(self.scheduler), {**self.told, "generator": self._ahead(canvas.device)}
        for step in range(self.step, min(self.step + self.drafts, twin.num_inference_steps) - 1):
            logits = self.known[step if step in self.known else max(self.known)].logits
            out = type(twin).step(twin, model_output=logits, timestep=step, sample=states[-1][0], **told)
            states.append((out.prev_sample, out.pred_logits))
        return states

    def _ahead(self, device: torch.device) -> torch.Generator:
        """A generator that draws what the next steps will draw."""
        assert self.told is not None
        own, twin = self.told.get("generator"), torch.Generator(device)
        if own is not None:
            return twin.set_state(own.get_state())
        if device.type == "cpu":
            return twin.set_state(torch.get_rng_state())
        return twin.set_state(torch.get_device_module(device).get_rng_state(device))

    def _computed(self, original: Callable[..., Any], kwargs: dict[str, Any], states: list[Any]) -> torch.Tensor:
        """Logits of all canvases `[B, K, L, V]` in one pass."""
        count = len(states)
        call = dict(kwargs)
        if count > 1:
            canvases, before = (torch.stack(part, 1).flatten(0, 1) for part in zip(*states, strict=True))
            masks = {
                name: None if mask is None else mask.repeat_interleave(count, 0)
                for name, mask in kwargs["decoder_attention_mask"].items()
            }
            call |= {"decoder_input_ids": canvases, "self_conditioning_logits": before}
            call |= {**cached(self._repeated(kwargs, count)), "decoder_attention_mask": masks}
        self.passes += 1
        self.canvases += count * len(kwargs["decoder_input_ids"])
        logits: torch.Tensor = original(**call).logits
        if self.drafts > 1:  # which are kept, and a CUDA graph writes over what its last pass gave
            logits = logits.clone()
        return logits.unflatten(0, (-1, count))

    def _repeated(self, kwargs: dict[str, Any], count: int) -> Any:
        """The cache of the text before the canvas, for so many canvases of each row."""
        if count not in self.caches:
            cache = _twin(cache_of(kwargs))
            cache.layers = [_twin(layer) for layer in cache.layers]
            for layer in cache.layers:
                layer.keys, layer.values = (x.repeat_interleave(count, 0) for x in (layer.keys, layer.values))
            self.caches = {count: cache}
        return self.caches[count]


def _twin(thing: Any) -> Any:
    """A shallow copy; `copy.copy` would leave a note on the class."""
    twin = object.__new__(type(thing))
    vars(twin).update(vars(thing))
    return twin
