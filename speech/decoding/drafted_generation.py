"""A session's `generate` of an encoder-decoder: the model's own, with a loop that verifies drafts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.generation.utils import GenerateEncoderDecoderOutput

from mmaccel.decoding import Stats
from mmaccel.patching import wrap_generate
from mmaccel.report import Report
from mmaccel.session import Session

from ..families.private import sample


class Drafter(Protocol):
    """What proposes tokens."""

    def begin(self, tokens: Sequence[int] = ()) -> None:
        """A text begins with these tokens."""

    def add(self, token: int) -> None:
        """The text goes on."""

    def propose(self, most: int) -> list[int]:
        """At most `most` tokens that may come next."""


@dataclass
class Run:
    """What one call of `generate` did."""

    drafter: Drafter
    block: int
    stats: Stats = field(default_factory=Stats)
    tokens: int = 0
    warnings: list[str] = field(default_factory=list)

    def warn(self, reason: str) -> None:
        text = f"the model's own loop ran: {reason}"
        if text not in self.warnings:
            self.warnings.append(text)


def verify_drafts(session: Session, stack: ExitStack, block: int, drafter: Callable[[Session], Drafter]) -> None:
    """Let `generate` of the session's target verify drafts of `block` tokens until the stack is closed."""
    model = session.target

    def generate(original: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        run = Run(drafter(session), block)
        reason = _reason(model, kwargs) if block else "drafts of 0 tokens"
        if reason is None:
            kwargs["custom_generate"] = functools.partial(_search, run)
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
    for name, plain in (("num_beams", 1), ("prompt_lookup_num_tokens", None), ("cache_implementation", None)):
        values = [kwargs.get(name), *(getattr(config, name, None) for config in configs)]
        value = next((value for value in values if value is not None), plain)
        if value != plain:
            return f"{name}={value!r}"
    return None


def _unfit(input_ids: torch.Tensor, config: Any, kwargs: dict[str, Any]) -> str | None:
    """Why this segment must be left to the model."""
    cache = kwargs.get("past_key_values")
    if config.do_sample:
        return "sampling"
    if input_ids.shape[0] > 1:
        return f"a batch of {input_ids.shape[0]}; drafts are verified for one recording at a time"
    if config.output_attentions or config.output_hidden_states:
        return "attentions or hidden states are asked for"
    if kwargs.get("decoder_attention_mask") is not None or kwargs.get("decoder_position_ids") is not None:
        return "the prompt is padded"
    fits = isinstance(cache, EncoderDecoderCache) and isinstance(cache.self_attention_cache, DynamicCache)
    return None if fits and kwargs.get("use_cache", True) else "there is no cache to take drafts back from"


def _search(
    run: Run,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **model_kwargs: Any,
) -> Any:
    """Greedy search as `generate` does it, with drafts."""
    reason = _unfit(input_ids, generation_config, model_kwargs)
    if reason is not None:
        run.warn(reason)
        result = sample(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
        ids = result if isinstance(result, torch.Tensor) else result.sequences
        run.tokens += ids.shape[0] * (ids.shape[1] - input_ids.shape[1])
        return result
    search = _Search(run, model, logits_processor, stopping_criteria, generation_config, model_kwargs)
    ids = search(input_ids)
    run.tokens += ids.shape[1] - input_ids.shape[1]
    if not generation_config.return_dict_in_generate:
        return ids
    found: dict[str, Any] = {"sequences": ids, "scores": search.scores, "logits": search.logits}
    return GenerateEncoderDecoderOutput(**found, past_key_values=search.cache)


class _Search:
    """One text: passes over drafts, of which the model's own choices are kept.

    Attributes
    ----------
    scores, logits
        `[1, V]` of each new token, after and before the processors; None where they are not asked for.
    """

    def __init__(
        self, run: Run, model: Any, processors: Any, criteria: Any, config: Any, kwargs: dict[str, Any]
    ) -> None:
        self.run, self.model, self.processors, self.criteria, self.kwargs = run, model, processors, criteria, kwargs
        self.cache = kwargs["past_key_values"]
        returned = config.return_dict_in_generate
        self.scores: tuple[torch.Tensor, ...] | None = () if returned and config.output_scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if returned and config.output_logits else None

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        self.run.drafter.begin(ids[0].tolist())
        finished, first = False, True
        while not finished:
            room = self.run.block if self.criteria.max_length is None else self.criteria.max_length - ids.shape[1] - 1
            block = self.run.drafter.propose(max(0, min(self.run.block, room)))
            rows = self._forward(ids, block, first)
            before, first = ids.shape[1], False
            ids, finished = self._verify(ids, block, rows)
            accepted = ids.shape[1] - before - 1
            self.cache.crop(accepted - len(block))
            self.run.stats.observe([accepted], len(block))
        return ids

    def _forward(self, ids: torch.Tensor, block: list[int], first: bool) -> torch.Tensor:
        """Logits `[1, K + 1, V]` after the text, and after each token of the draft."""
        fed = torch.cat([ids, ids.new_tensor([block])], 1) if block else ids
        inputs = self.model.prepare_inputs_for_generation(
            fed,
            next_sequence_length=fed.shape[1] - self.cache.get_seq_length(),
            is_first_iteration=first,
            **self.kwargs,
        )
        logits: torch.Tensor = self.model(**inputs, return_dict=True).logits
        return logits[:, -len(block) - 1 :]

    def _verify(self, ids: torch.Tensor, block: list[int], rows: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Append what the model chooses, up to the first token that the draft does not have; whether that is all.

        Processors and stopping criteria see each token once and in order, as in a loop of single steps.
        """
        for place in range(len(block) + 1):
            logits = rows[:, place].to(copy=True, dtype=torch.float32, device=ids.device)
            scores = self.processors(ids, logits)
            token = scores.argmax(-1)
            if self.scores is not None:
                self.scores += (scores,)
            if self.logits is not None:
                self.logits += (logits,)
            ids = torch.cat([ids, token[:, None]], 1)
            self.run.drafter.add(int(token))
            if bool(self.criteria(ids, self.scores).all()):
                return ids, True
            if place == len(block) or int(token) != block[place]:
                break
        return ids, False


def _fill(report: Report, run: Run) -> None:
    stats = run.stats
    report.tokens = run.tokens
    report.forwards, report.plain_forwards = stats.forwards, stats.emitted
    report.engaged |= stats.accepted > 0  # a method beside it may have
    report.warnings.extend(run.warnings)
    report.details.update(drafted=stats.drafted, accepted=stats.accepted)
    if stats.forwards and not stats.accepted:
        report.warnings.append(f"none of {stats.drafted} drafted tokens was right: this text does not repeat itself")
