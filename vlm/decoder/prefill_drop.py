"""PrefillDrop: the later layers of a decoder work on those tokens of a long prompt that its end attends to; lossy."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.kernels.policies.compress.fast_kv import fast_kv
from mmaccel.method import Advice, is_count, is_share
from mmaccel.registry import register
from mmaccel.session import Session

from .call import AttentionCall, GenerateRun
from .kept_tokens import KeptTokens, install
from .method import DecoderMethod

DEPTH = 0.625  # of the layers compute the whole prompt
STEP = 0.1  # of the layers are between two drops

EXAMPLE = """from pathlib import Path

import mmaccel
from mmaccel import vlm
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
tokenizer = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
inputs = tokenizer(Path("long.txt").read_text() + "\\nIn short:", return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, max_new_tokens=64)
    print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :]))
    print(fast.report)"""


@register("vlm")
@dataclass(frozen=True)
class PrefillDrop(DecoderMethod):
    """Let only the first layers read a whole long prompt, and the later ones what the end of it attends to; lossy.

    FastKV (Jo et al., 2025): from some layer on, importance hardly changes. There the last queries vote, and the hidden
    states of the other tokens are dropped, so that the rest of the prompt's computation and its cache is saved. Asked
    to, they vote again some layers later, where fewer tokens hold what matters (PyramidInfer, Yang et al., 2024).
    With :class:`SparsePrefill` the layers before that are cheaper too.

    Parameters
    ----------
    keep
        Share of the prompt that the later layers get, above 0 and up to 1 (plain); default 0.3, where the paper has
        0.2, which lost more than it saved. Of several, each smaller than the one before, the next is dropped to a tenth
        of the layers later: ``(0.3, 0.1)``.
    layer
        The last layer that reads everything, counted from 0; None (default) for five of eight layers. The paper has
        half of them, where the queries of a small model did not know yet what they would look for.
    window
        Last tokens that vote, and are kept; default 8 as in the paper. More know less of what comes next.
    kernel
        Width of the pooling of votes over neighbouring tokens, odd, default 7 as in the paper.
    min_length
        Shortest prompt of which anything is dropped, default 1024.

    Notes
    -----
    Lossy: later layers never see what was dropped, also when another turn asks for it. Positions are those of the whole
    prompt. Each row of a padded batch gives the same output as alone. A prompt that goes on from a cache is computed in
    full, and one in chunks after its first chunk; so is one in transformers' assisted decoding.

    Raises
    ------
    SettingError
        If a setting is out of range; at the plan, if the model has no layer after the last drop.

    Examples
    --------
    >>> print(PrefillDrop(keep=0.5))
    vlm.PrefillDrop(keep=0.5)
    """

    keep: float | tuple[float, ...] = 0.3
    layer: int | None = None
    window: int = 8
    kernel: int = 7
    min_length: int = 1024

    paper: ClassVar[str] = "FastKV: Decoupling of Context Reduction and KV Cache Compression for Prefill-Decoding, 2025"
    advice: ClassVar[Advice] = Advice(
        "Prompts of many thousand tokens, whose reading is most of the wait.",
        "What the end of the prompt does not attend to is hardly known in later turns.",
        example=EXAMPLE,
    )
    role: ClassVar[str] = "prompt tokens"
    excludes: ClassVar[frozenset[str]] = frozenset({"decoding cache"})
    families: ClassVar[frozenset[str] | None] = frozenset({"decoder"})
    neutral: ClassVar[dict[str, Any]] = {"keep": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"keep": 0.3, "window": 8, "min_length": 32}
    drops_keys: ClassVar[bool] = True
    drops_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.keep, list):
            object.__setattr__(self, "keep", tuple(self.keep))
        keep = self._shares
        fits = bool(keep) and all(is_share(share) for share in keep) and sorted({*keep}, reverse=True) == [*keep]
        self._require(
            fits, "keep", "above 0 and at most 1, a share of the prompt, or several, each smaller than the last"
        )
        self._require(self.layer is None or is_count(self.layer, 0), "layer", "a whole number of at least 0, or None")
        self._require(is_count(self.window), "window", "a whole number of at least 1")
        self._require(is_count(self.kernel) and self.kernel % 2 == 1, "kernel", "an odd number of at least 1")
        self._require(is_count(self.min_length, 2), "min_length", "a whole number of at least 2")

    @property
    def is_neutral(self) -> bool:
        return self._shares == (1.0,)

    @property
    def _shares(self) -> tuple[float, ...]:
        return self.keep if isinstance(self.keep, tuple) else (self.keep,)

    def drops(self, layers: int) -> dict[int, float]:
        """The share that is kept after each layer that is the last before a drop, in a decoder of so many layers."""
        first = max(0, round(DEPTH * layers) - 1) if self.layer is None else self.layer
        step = max(1, round(STEP * layers))
        return {first + number * step: share for number, share in enumerate(self._shares)}

    def attach(self, session: Session, stack: ExitStack) -> None:
        super().attach(session, stack)
        if not self.is_neutral:
            adapter, attention = session.adapter, session.adapter.attention
            install(adapter.layers, self.drops(len(adapter.layers)), lambda: attention.run, stack)

    def after(self, call: AttentionCall) -> None:
        """Choose what the later layers get, after a layer that is the last before a drop."""
        run, kept = call.run, call.run.kept_at(call.layer_idx)
        if run.kept:
            run.engaged.add(self.name)
            run.plain_keys.add(0 if kept is None else kept.pairs_missing(call))
        filling = call.queries >= self.min_length if not run.kept else run.kept[-1].filling
        if call.layer_idx in run.drops and filling:
            self._choose(call, kept)

    def _choose(self, call: AttentionCall, before: KeptTokens | None) -> None:
        """What the layers after this one get, of what it got."""
        if call.run.guessing is not None:  # they would vote in place of the prompt's end, and are taken back later
            call.run.warn(f"PrefillDrop dropped nothing: {call.run.guessing} was given")
        elif call.queries != call.keys:
            call.run.warn("PrefillDrop dropped nothing: the prompt goes on from a cache, or has one of fixed length")
        elif call.starts is None:
            call.run.warn("PrefillDrop dropped nothing: the mask is more than causal with padding on the left")
        else:
            length = call.keys if before is None else before.columns.length
            lengths = [call.keys - start for start in call.starts] if before is None else before.lengths
            chosen = [self._row(call, row, lengths[row]) for row in range(len(lengths))]
            width = max(len(columns) for columns in chosen)
            left = [torch.nn.functional.pad(columns, (width - len(columns), 0), value=-1) for columns in chosen]
            if any(len(columns) < call.keys - start for columns, start in zip(chosen, call.starts, strict=True)):
                call.run.kept.append(KeptTokens(call.layer_idx, torch.stack(left), length, lengths, before))

    def _row(self, call: AttentionCall, row: int, length: int) -> torch.Tensor:
        """Columns to keep of one row, whose prompt has so many tokens, ascending."""
        assert call.starts is not None
        start = call.starts[row]
        if length < self.min_length:
            return torch.arange(start, call.keys, device=call.key.device)
        query, key, _ = call.part((row, row + 1), start, start)
        window = min(self.window, key.shape[2])
        count = max(1, int(length * call.run.drops[call.layer_idx] + 0.5))
        voters = query[:, :, -window:]
        index = fast_kv(voters, key, count=count, window=window, kernel=self.kernel, scale=call.scaling)
        return index[0].long() + start

    def idle(self, run: GenerateRun) -> str:
        return f"no prompt of min_length={self.min_length} tokens or more had any that it dropped"
