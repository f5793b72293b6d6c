"""Draft and verify within transformers' own `generate`, for encoder-decoders and for decoders.

`generate` does all that comes before and after its loop; the loop is the shared one, with the model as its target.
Each token is chosen as `generate` chooses it, so that the same random state gives the same text.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from mmaccel import private
from mmaccel.patching import wrap_generate
from mmaccel.report import Report
from mmaccel.session import Session

from .loop import Drafter, FixedWidth, draft_and_verify
from .matching import Draft, Verdict, match
from .stats import Stats


class TextDrafter(Drafter[Draft, Verdict], Protocol):
    """A drafter that is told the text as it grows."""

    def begin(self, tokens: Sequence[int] = ()) -> None:
        """A text begins with these tokens."""


@dataclass
class DraftedRun:
    """The work of one call of `generate`, on one text or on the segments of one recording."""

    drafter: TextDrafter
    block: int
    stats: Stats = field(default_factory=Stats)
    tokens: int = 0
    warnings: list[str] = field(default_factory=list)

    def warn(self, reason: str) -> None:
        text = f"the model's own loop ran: {reason}"
        if text not in self.warnings:
            self.warnings.append(text)


def verify_drafts(session: Session, stack: ExitStack, block: int, drafter: Callable[[Session], TextDrafter]) -> None:
    """Let `generate` of the session's target verify drafts of `block` tokens until the stack is closed."""
    model = session.target

    def generate(original: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        run = DraftedRun(drafter(session), block)
        reason = _reason(model, kwargs) if block else "drafts of 0 tokens"
        if reason is None:
            kwargs["custom_generate"] = functools.partial(_decode, run)
        else:
            run.warn(reason)
        result = original(**kwargs)
        _fill(session.report, run)
        return result

    wrap_generate(stack, session, generate)


def _reason(model: Any, kwargs: dict[str, Any]) -> str | None:
    """Why this call must be left to the model, as far as its arguments tell."""
    for name in ("streamer", "assistant_model", "custom_generate"):
        if kwargs.get(name) is not None:
            return f"{name} was given"
    configs = [config for config in (kwargs.get("generation_config"), model.generation_config) if config is not None]
    settings = {"num_beams": 1, "prompt_lookup_num_tokens": None, "cache_implementation": None}
    for name, plain in {**settings, "prefill_chunk_size": None}.items():
        values = [kwargs.get(name), *(getattr(config, name, None) for config in configs)]
        value = next((value for value in values if value is not None), plain)
        if value != plain:
            return f"{name}={value!r}"
    return None


def _unfit(model: Any, input_ids: torch.Tensor, config: Any, kwargs: dict[str, Any]) -> str | None:
    """Why this text must be left to the model."""
    cache = kwargs.get("past_key_values")
    if input_ids.shape[0] > 1:
        return f"a batch of {input_ids.shape[0]}; drafts are verified for one text at a time"
    if config.output_attentions or config.output_hidden_states:
        return "attentions or hidden states are asked for"
    if model.config.is_encoder_decoder:
        padded = kwargs.get("decoder_attention_mask") is not None or kwargs.get("decoder_position_ids") is not None
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else None
    else:
        mask, own = kwargs.get("attention_mask"), cache
        padded = mask is not None and (mask.ndim != 2 or not bool(mask.all()))
    if padded:
        return "the prompt is padded"
    if type(own) is not DynamicCache or not own.is_croppable or not kwargs.get("use_cache", True):
        return "there is no cache to take drafts back from"
    if kwargs.get("inputs_embeds") is not None and own.get_seq_length():
        return "embeddings go on from a cache"
    return None


def _decode(
    run: DraftedRun,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **model_kwargs: Any,
) -> Any:
    """The loop of `generate`, with drafts."""
    reason = _unfit(model, input_ids, generation_config, model_kwargs)
    if reason is not None:
        run.warn(reason)
        result = private.own_loop(
            model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
        )
        ids = result if isinstance(result, torch.Tensor) else result.sequences
        run.tokens += ids.shape[0] * (ids.shape[1] - input_ids.shape[1])
        return result
    text = GeneratedText(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
    run.drafter.begin(input_ids[0].tolist())
    draft_and_verify(run.drafter, text, text, FixedWidth(run.block + 1), run.stats)
    run.tokens += text.ids.shape[1] - input_ids.shape[1]
    if not generation_config.return_dict_in_generate:
        return text.ids
    output = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    found: dict[str, Any] = {"sequences": text.ids, "scores": text.scores, "logits": text.logits}
    return output(**found, past_key_values=text.cache)


class GeneratedText:
    """One text that grows by drafts: target of the loop, and its rule, which chooses tokens as `generate` does.

    Processors and stopping criteria see each committed token once and in order, as in a loop of single steps.

    Attributes
    ----------
    ids
        `[1, N]`, prompt and committed tokens.
    scores, logits
        `[1, V]` of each new token, after and before the processors; None where they are not asked for.
    """

    def __init__(
        self, model: Any, ids: torch.Tensor, processors: Any, criteria: Any, config: Any, kwargs: dict[str, Any]
    ) -> None:
        self.model, self.ids, self.device = model, ids, ids.device
        self.processors, self.criteria, self.do_sample, self.kwargs = processors, criteria, config.do_sample, kwargs
        self.cache = kwargs["past_key_values"]
        self.is_decoder = not model.config.is_encoder_decoder
        self.first, self.finished = True, False
        self.drafted = 0  # tokens of the draft that is in the cache
        returned = config.return_dict_in_generate
        self.scores: tuple[torch.Tensor, ...] | None = () if returned and config.output_scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if returned and config.output_logits else None

    @property
    def room(self) -> int:
        if self.finished:
            return 0
        if self.first and self.is_decoder:
            return 1  # the prompt may hold pictures: what prepares it knows nothing of drafts
        longest = self.criteria.max_length
        return sys.maxsize if longest is None else max(1, longest - self.ids.shape[1])

    def forward(self, draft: Draft) -> torch.Tensor:
        """Logits `[1, K + 1, V]` after the text, and after each token of the draft."""
        fed = torch.cat([self.ids, self.ids.new_tensor([draft.tokens])], 1) if draft.size else self.ids
        kwargs = private.kwargs_after(self.model, self.kwargs, draft.size)
        if "logits_to_keep" in kwargs:
            kwargs["logits_to_keep"] = draft.size + 1
        embedded = self.first and kwargs.get("inputs_embeds") is not None
        inputs = self.model.prepare_inputs_for_generation(
            fed,
            next_sequence_length=None if embedded else fed.shape[1] - self._cached,
            is_first_iteration=self.first,
            **kwargs,
        )
        logits: torch.Tensor = self.model(**inputs, return_dict=True).logits
        self.first, self.drafted = False, draft.size
        return logits[:, -draft.size - 1 :]

    @property
    def _cached(self) -> int:
        """Tokens of `ids` that the cache holds."""
        return self.cache.get_seq_length() if self.first else self.ids.shape[1] - 1

    def judge(self, output: torch.Tensor, draft: Draft) -> Verdict:
        return match(draft, lambda node: self._choose(output[:, node + 1]))

    def _choose(self, row: torch.Tensor) -> tuple[int, bool]:
        """Append what the model chooses by its logits `[1, V]`; that token, and whether the text ends."""
        logits = row.to(copy=True, dtype=torch.float32, device=self.device)
        scores = self.processors(self.ids, logits)
        token = torch.multinomial(scores.softmax(-1), 1) if self.do_sample else scores.argmax(-1, keepdim=True)
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (logits,)
        self.ids = torch.cat([self.ids, token], 1)
        self.finished = bool(self.criteria(self.ids, self.scores).all())
        return int(token), self.finished

    def commit(self, verdict: Verdict) -> list[int]:
        """Take the rejected drafts back from the cache."""
        accepted = len(verdict.path)
        self.cache.crop(accepted - self.drafted)
        self.kwargs = private.kwargs_after(self.model, self.kwargs, len(verdict.tokens))
        return [accepted]


def _fill(report: Report, run: DraftedRun) -> None:
    stats = run.stats
    report.tokens, report.forwards, report.plain_forwards = run.tokens, stats.forwards, stats.emitted
    report.engaged |= stats.accepted > 0  # a method beside it may have
    report.warnings.extend(run.warnings)
    report.details.update(drafted=stats.drafted, accepted=stats.accepted)
    if stats.forwards and not stats.accepted:
        wrong = f"none of {stats.drafted} drafted tokens was right: this text does not repeat itself"
        nothing = "nothing was drafted: no repeat was found in the prompt or the answer"
        report.warnings.append(wrong if stats.drafted else nothing)
