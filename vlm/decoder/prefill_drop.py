"""PrefillDrop: the later layers of a decoder work on those tokens of a long prompt that its end attends to; lossy."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.kernels.policies.compress.fast_kv import fast_kv
from mmaccel.method import Advice, is_count
from mmaccel.registry import register
from mmaccel.session import Session

from .call import Call, GenerateRun
from .kept_tokens import KeptTokens, install
from .method import DecoderMethod, is_share

DEPTH = 0.5  # of the layers compute the whole prompt

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
    states of the other tokens are dropped, so that the rest of the prompt's computation and of its cache is saved.

    Parameters
    ----------
    keep
        Share of the prompt that the later layers get, above 0 and up to 1 (plain); default 0.4, since the paper's 0.2
        lost too much on a small model.
    layer
        The last layer that reads everything, counted from 0; None (default) for half of the layers, as in the paper.
    window
        Last tokens that vote, and are kept; default 32, as in SnapKV (2024), where the paper has 8.
    kernel
        Width of the pooling of votes over neighbouring tokens, odd, default 7 as in the paper.
    min_length
        Shortest prompt of which anything is dropped, default 1024.

    Notes
    -----
    Lossy: later layers never see what was dropped, also when another turn asks for it. Positions are those of the whole
    prompt. Each row of a padded batch gives the same output as alone. A prompt that goes on from a cache is computed in
    full, and one in chunks after its first chunk.

    Raises
    ------
    SettingError
        If a setting is out of range; at the plan, if the model has no such layer.

    Examples
    --------
    >>> print(PrefillDrop(keep=0.5))
    vlm.PrefillDrop(keep=0.5)
    """

    keep: float = 0.4
    layer: int | None = None
    window: int = 32
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
        self._require(is_share(self.keep), "keep", "above 0 and at most 1, a share of the prompt")
        self._require(self.layer is None or is_count(self.layer, 0), "layer", "a whole number of at least 0, or None")
        self._require(is_count(self.window), "window", "a whole number of at least 1")
        self._require(is_count(self.kernel) and self.kernel % 2 == 1, "kernel", "an odd number of at least 1")
        self._require(is_count(self.min_length, 2), "min_length", "a whole number of at least 2")

    @property
    def is_neutral(self) -> bool:
        return self.keep == 1.0

    def last_whole(self, layers: int) -> int:
        """The last layer that reads everything, in a decoder of so many."""
        return max(0, round(DEPTH * layers) - 1) if self.layer is None else self.layer

    def attach(self, session: Session, stack: ExitStack) -> None:
        super().attach(session, stack)
        if not self.is_neutral:
            adapter, attention = session.adapter, session.adapter.attention
            install(adapter.layers, self.last_whole(len(adapter.layers)), lambda: attention.run, stack)

    def after(self, call: Call) -> None:
        """Choose what the later layers get, after the last layer that reads everything."""
        run = call.run
        if run.kept is not None and run.last_whole is not None:
            run.engaged.add(self.name)
            run.plain_keys.add(run.kept.pairs_missing(call) if call.layer_idx > run.last_whole else 0)
        elif run.last_whole == call.layer_idx and call.queries >= self.min_length:
            self._choose(call)

    def _choose(self, call: Call) -> None:
        if call.queries != call.keys:
            call.run.warn("PrefillDrop dropped nothing: the prompt goes on from a cache")
        elif call.starts is None:
            call.run.warn("PrefillDrop dropped nothing: the mask is more than causal with padding on the left")
        else:
            chosen = [self._rows(call, *piece) for piece in call.pieces()]
            width = max(part.shape[1] for part in chosen)
            columns = torch.cat(
                [torch.nn.functional.pad(part, (width - part.shape[1], 0), value=-1) for part in chosen]
            )
            if width < call.keys:
                call.run.kept = KeptTokens(columns, call.keys, [call.keys - start for start in call.starts])

    def _rows(self, call: Call, rows: tuple[int, int], start: int, query_start: int) -> torch.Tensor:
        """Columns to keep of some rows with equal padding, ascending."""
        query, key, _ = call.part(rows, start, query_start)
        length = key.shape[2]
        if length < self.min_length:
            return torch.arange(start, call.keys, device=key.device).expand(len(key), -1)
        window = min(self.window, length)
        voters = query[:, :, -window:]
        index = fast_kv(voters, key, keep=self.keep, window=window, kernel=self.kernel, scale=call.scaling)
        return index.long() + start

    def idle(self, run: GenerateRun) -> str:
        return f"no prompt had min_length={self.min_length} tokens"
