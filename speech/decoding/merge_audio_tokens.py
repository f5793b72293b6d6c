"""Fewer audio tokens for the decoder of a recogniser."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.machine import unrounded
from mmaccel.method import Advice, Method, is_number, is_share
from mmaccel.patching import hook, wrap_generate
from mmaccel.registry import register
from mmaccel.session import Session

from ..families.private import rotated
from .audio_tokens import MergedTokens, merge_tokens
from .projections import NAMES, split_heads, watch

# Models whose encoders give merged tokens now, so that nobody takes their places for times.
_merged: weakref.WeakSet[Any] = weakref.WeakSet()


@register("speech")
@dataclass(frozen=True)
class MergeAudioTokens(Method):
    """SA-MAP: similar neighbouring audio tokens merge into one, and the most informative ones stay.

    The decoder attends to fewer tokens, and each of its steps costs less; the encoder does what it did, and merging
    adds to that. Importance is the attention that a token receives in the encoder's last layer, mean over heads and
    queries. Rows of a batch are shortened apart; decoders without a mask get equally many tokens for each. Lossy.

    Published for audio language models: at 60 % of the tokens the word error rate of Qwen2-Audio goes from 4.06 to
    5.39. On human speech Moonshine tiny has far fewer runs than that: at a threshold of 0.85 they are 12 % of the
    tokens, and 0.8 % of the words change on 54 s of it and 2.4 % on 107 s of other speakers; at 0.80 they are 9 %, and
    16 % and 7 % change. A decoder step is about a tenth cheaper on a CPU, of which merging takes half or more back.
    Gains need long audio and large decoders. Merged tokens have no times: recognisers refuse a model while it merges.

    Parameters
    ----------
    keep
        Largest share of the tokens to keep, above 0 and at most 1; default 0.6, as published. 1 does nothing.
    threshold
        Mean cosine similarity to all tokens of a run above which a token joins it, -1 to 1; default 0.85, as published.

    Raises
    ------
    SettingError
        If a setting is outside its range, or `generate` is asked for times of tokens.

    Examples
    --------
    >>> with mmaccel.accelerate(model, speech.MergeAudioTokens(keep=0.3)) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**inputs)
    ...     print(fast.report)
    """

    paper: ClassVar[str] = "AngelSlim: SA-MAP, similarity-attention merging and MAP pruning of audio tokens, 2025"
    advice: ClassVar[Advice] = Advice(
        "Long audio with still stretches, and decoders that are large beside their encoder.",
        "Words change. On the small recogniser merging costs more time than it saves.",
    )
    families: ClassVar[frozenset[str] | None] = frozenset({"moonshine", "whisper"})
    neutral: ClassVar[dict[str, Any]] = {"keep": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"keep": 0.5}

    keep: float = 0.6
    threshold: float = 0.85

    def __post_init__(self) -> None:
        self._require(is_share(self.keep), "keep", "above 0 and at most 1, a share of the audio tokens")
        self._require(is_number(self.threshold, -1, 1), "threshold", "from -1 to 1, a cosine similarity")

    @property
    def exact(self) -> bool:
        return self.keep == 1

    def attach(self, session: Session, stack: ExitStack) -> None:
        counts = _Counts()
        if self.keep < 1:
            stack.enter_context(_merging(self, session.target.get_encoder(), counts))
            _merged.add(session.target)
            stack.callback(_merged.discard, session.target)
        _count_generated(self, session, counts, stack)


@dataclass
class _Counts(threading.local):
    """What the encoder gave and what was left of it, in one call of `generate`; of each thread its own."""

    rows: int = 0
    tokens: int = 0
    kept: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0

    def clear(self) -> None:
        self.rows = self.tokens = self.kept = self.peak_bytes = 0
        self.seconds = 0.0


@dataclass
class _Received(threading.local):
    """The attention that each token receives in one layer, from what went through that layer last in a thread."""

    module: Any
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    positions: Any = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep queries, keys and positions of each forward."""

        def keep(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
            self.positions = kwargs.get("position_embeddings")

        with ExitStack() as stack:
            hook(stack, self.module, before=keep)
            watch(stack, self.module, lambda name, output: self.states.update({name: output}))  # those of its thread
            yield

    def importance(self, mask: torch.Tensor | None) -> torch.Tensor:
        """`[B, T]`: mean over heads and queries, padding left out; one head at a time, to hold one map only."""
        query, key = (split_heads(self.states[name], self.module.head_dim) for name in NAMES)
        if self.positions is not None:
            query, key = rotated(self.module, query, key, self.positions)
        self.states.clear()
        self.positions = None
        query = query.float() * self.module.head_dim**-0.5
        key = key.float()
        total = key.new_zeros(key.shape[0], key.shape[2])
        for head in range(query.shape[1]):
            with unrounded(key.device.type):
                scores = query[:, head] @ key[:, head].mT
            if mask is not None:
                scores = scores.masked_fill(~mask.bool()[:, None], -torch.inf)
            shares = scores.softmax(-1)
            total += (shares if mask is None else shares * mask[..., None]).sum(1)
        return total / query.shape[1] / key.shape[2]


@contextmanager
def _merging(method: MergeAudioTokens, encoder: Any, counts: _Counts) -> Iterator[None]:
    """While open, the encoder gives merged tokens."""
    received = _Received(encoder.layers[-1].self_attn)

    def merge(_encoder: Any, _args: Any, _kwargs: Any, output: Any) -> Any:
        began = time.perf_counter()
        hidden_states = output[0]
        has_mask = "attention_mask" in getattr(output, "__dataclass_fields__", {})
        mask = output.attention_mask if has_mask else None
        importance = received.importance(mask)
        merged = merge_tokens(hidden_states, importance, method.keep, method.threshold, mask, equal=not has_mask)
        _count(counts, hidden_states, mask, merged, time.perf_counter() - began)
        return _replaced(output, merged, has_mask, mask)

    with received.watched(), ExitStack() as stack:
        hook(stack, encoder, after=merge)
        yield


def refuse_merged(model: Any) -> None:
    """Raise `UnsupportedTargetError` while a session merges the audio tokens of `model`."""
    if any(model is one for one in _merged):
        raise UnsupportedTargetError(
            f"this {type(model).__name__} is under a session with MergeAudioTokens; merged tokens have no times, and"
            " words would get wrong ones: call .remove() on that session, or use its generate(), which gives text alone"
        )


def _replaced(output: Any, merged: MergedTokens, has_mask: bool, mask: torch.Tensor | None) -> Any:
    """The encoder's output with merged tokens, and a mask where rows are of different lengths."""
    if isinstance(output, tuple):
        return (merged.features, *output[1:])
    changes: dict[str, Any] = {"last_hidden_state": merged.features}
    if has_mask:
        kept = merged.size > 0
        changes["attention_mask"] = None if mask is None and bool(kept.all()) else kept.int()
    return type(output)(**{**output, **changes})


def _count(
    counts: _Counts, hidden_states: torch.Tensor, mask: torch.Tensor | None, merged: MergedTokens, seconds: float
) -> None:
    batch, length = hidden_states.shape[:2]
    counts.rows += batch
    counts.tokens += batch * length if mask is None else int(mask.sum())
    counts.kept += int((merged.size > 0).sum())
    held = merged.features.nbytes + 4 * batch * length * length  # one map
    counts.peak_bytes = max(counts.peak_bytes, held)
    counts.seconds += seconds


def _count_generated(method: MergeAudioTokens, session: Session, counts: _Counts, stack: ExitStack) -> None:
    """Let `generate` of the session's target fill the report until the stack is closed."""

    def generate(original: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("return_token_timestamps") and method.keep < 1:
            raise SettingError(
                f"return_token_timestamps=True with {method}: merged tokens have no times of their own;"
                " use mmaccel.accelerate without it, or leave return_token_timestamps out"
            )
        counts.clear()
        result = original(**kwargs)
        _fill(method, session, counts, result)
        return result

    wrap_generate(stack, session, generate)


def _fill(method: MergeAudioTokens, session: Session, counts: _Counts, result: Any) -> None:
    report = session.report
    sequences = result if isinstance(result, torch.Tensor) else result["sequences"]
    tokens = int(sequences.numel())
    report.tokens = report.tokens or tokens  # drafts beside it count them without prompt and padding
    merged = counts.kept < counts.tokens
    report.engaged |= merged  # a method beside it may have
    report.peak_extra_bytes += counts.peak_bytes
    report.details.update(audio_tokens=counts.tokens, kept=counts.kept, merging_seconds=counts.seconds)
    if counts.rows:
        # cross-attention only: every new token, in every layer and head, attends to all audio tokens of its row
        each = tokens * _heads(session.target.config) / counts.rows
        report.keys, report.plain_keys = round(counts.kept * each), round(counts.tokens * each)
    elif method.keep < 1:
        report.warnings.append(f"{method} did nothing: encoder_outputs were given, and the encoder did not run")
    if counts.rows and not merged:
        report.warnings.append(f"no two neighbours are alike from {method.threshold}: lower threshold or keep")


def _heads(config: Any) -> int:
    """Layers times heads of the decoder."""
    layers = getattr(config, "decoder_num_hidden_layers", None) or config.decoder_layers
    heads = getattr(config, "decoder_num_attention_heads", None) or config.decoder_attention_heads
    return int(layers * heads)
