"""Draft and verify within transformers' own `generate`, for encoder-decoders and for decoders.

`generate` does all that comes before and after its loop; the loop is the shared one, with the model as its target.
Each token is chosen as `generate` chooses it, so that the same random state gives the same text.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import GenerationMixin, StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput
from transformers.utils.generic import ModelOutput

from mmaccel import private
from mmaccel.cache.argument import cache_of, cached
from mmaccel.linears.skinny import skinny_linears
from mmaccel.patching import wrap_generate
from mmaccel.report import Report
from mmaccel.session import Session

from .dice import DEVICES, Dice
from .generated_texts import GeneratedTexts
from .loop import draft_and_verify
from .passes.slots import unfit_for_rows
from .row_drafters import RowDrafters
from .setting import leave_out, setting, tokens_made
from .stats import Stats
from .unfit import is_spread, prompt_mask, reason_to_leave, unfit, unfit_for_batch, unfit_model, unfit_states

if TYPE_CHECKING:
    from .drafters.draft_method import DraftMethod

TOO_SHORT = {  # to save anything, by the tokens of the longest text
    1: "the answer is one token, which the pass over the prompt gives",
    2: "the answer is two tokens, a pass each, of which drafts save none",
}
VOCABULARY = "tokens of the model"  # by this name the memory of a session has their number
GUIDING = ("UnbatchedClassifierFreeGuidanceLogitsProcessor",)  # processors that make a pass of the model of their own


class Holder(Protocol):
    """What drafts belong to: a session, or what stands in its place."""

    target: Any
    memory: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """What drafters know of a text, or a batch, that is to be written.

    Attributes
    ----------
    session
        Where is kept what they learn.
    rows
        Texts of the batch.
    branches
        Whether drafts may be trees.
    given
        What the method took out of the arguments.
    texts
        That grow by the drafts; None where another engine writes them.
    shared
        What the drafters of its rows have in common, by name.
    """

    session: Holder
    rows: int = 1
    branches: bool = True
    given: Any = None
    texts: GeneratedTexts | None = None
    shared: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def dice(self) -> Dice | None:
        """What a sampled text will be drawn with; None for one that is not, in a batch, and where it is not known."""
        text = None if self.texts is None or self.rows > 1 else self.texts.texts[0]
        if text is None or not text.do_sample or text.ids.device.type not in DEVICES:
            return None
        return Dice(text, self.session.target.config.get_text_config(decoder=True).vocab_size)

    def reads_again(self) -> bool:
        """Whether accepted drafts have to be read once more, as where layers have a state."""
        past = None if self.texts is None else self.texts.past
        return past is not None and past.has_states


@dataclass
class DraftedRun:
    """The work of one call of `generate`, on a batch of texts or on the segments of recordings."""

    session: Holder
    method: DraftMethod
    given: Any = None  # what the method took out of its arguments
    streamer: Any = None
    stats: Stats = field(default_factory=Stats)
    tokens: int = 0
    longest: int = 0  # tokens of one text
    plain_forwards: int = 0  # a plain pass gives every row of a batch a token
    left: int = 0  # passes of segments that the model's own loop wrote
    chains: str | None = None  # why drafts were no trees, and the rows of a batch were read in step
    warnings: list[str] = field(default_factory=list)

    def warn(self, reason: str) -> None:
        text = f"the model's own loop ran: {reason}"
        if text not in self.warnings:
            self.warnings.append(text)


def verify_drafts(session: Session, stack: ExitStack, method: DraftMethod) -> None:
    """Let `generate` of the session's target verify the drafts of a method until the stack is closed.

    Passes of a few tokens go through :func:`~mmaccel.linears.skinny.skinny_linears`.
    """
    model = session.target

    def generate(original: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        run = DraftedRun(session, method, method.take(model, kwargs))
        reason = reason_to_leave(model, kwargs) if method.block else "drafts of 0 tokens"
        if reason is None:
            run.streamer = kwargs.pop("streamer", None)  # which `generate` gives to no loop but its own
            _stop_at_strings(model, kwargs)
            kwargs["custom_generate"] = functools.partial(decode, run)
        else:
            run.warn(reason)
        result = original(**kwargs)
        if reason is not None:
            run.tokens = _tokens_left(model, result, kwargs)
        fill(session.report, run)
        return result

    if method.block:
        skinny_linears(stack, model)
    wrap_generate(stack, session, generate)


def _tokens_left(model: Any, result: Any, kwargs: dict[str, Any]) -> int:
    """Tokens of a call that was left to the model; 0 where it is not known what their texts were begun with."""
    if not model.config.is_encoder_decoder:
        return tokens_made(result, kwargs)
    is_raw = isinstance(result, ModelOutput) or setting(model, kwargs, "force_unique_generate_call")
    if is_raw and type(model).generate is not GenerationMixin.generate:
        return 0  # Whisper: with language, task and prompt of its own making
    starts = (setting(model, kwargs, name) for name in ("decoder_start_token_id", "bos_token_id"))  # as `generate`
    return tokens_made(result, kwargs, next((start for start in starts if start is not None), None))


def _stop_at_strings(model: Any, kwargs: dict[str, Any]) -> None:
    """Make a criterion of `stop_strings`: `generate` gives the tokenizer, too, to no loop but its own."""
    strings, tokenizer = setting(model, kwargs, "stop_strings"), kwargs.get("tokenizer")
    if strings is not None and tokenizer is not None:
        criterion = StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)
        kwargs["stopping_criteria"] = StoppingCriteriaList([*(kwargs.get("stopping_criteria") or ()), criterion])
        leave_out(model, kwargs, "stop_strings")


def decode(
    run: DraftedRun,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **model_kwargs: Any,
) -> Any:
    """The loop of `generate`, with drafts."""
    given = input_ids, generation_config, model_kwargs
    reason = unfit(model, *given) or unfit_model(model, *given)
    if reason is None:
        reason = unfit_states(model, input_ids, cache_of(model_kwargs), run.session.memory)
    if reason is None and input_ids.shape[0] > 1:
        reason = unfit_for_batch(logits_processor, stopping_criteria, run.streamer)
    if run.streamer is not None:
        run.streamer.put(input_ids.cpu())
    if reason is not None:
        run.warn(reason)
        more = {**model_kwargs, "streamer": run.streamer}
        result = private.own_loop(model, input_ids, logits_processor, stopping_criteria, generation_config, more)
        ids = result if isinstance(result, torch.Tensor) else result.sequences
        steps = ids.shape[1] - input_ids.shape[1]
        run.tokens, run.left = run.tokens + ids.shape[0] * steps, run.left + steps
        return result
    method = run.method
    _forget_removed(run.session.memory, model)
    if model.config.is_encoder_decoder:
        model_kwargs.pop("decoder_attention_mask", None)  # hides nothing here, and would have to grow with the text
    reason = unfit_for_rows(model)
    fits = reason is None
    branches = method.branches and fits
    if method.branches or len(input_ids) > 1:
        run.chains = reason
    spreads = branches or (fits and is_spread(model, input_ids, model_kwargs))
    texts = GeneratedTexts(
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs,
        spreads=spreads, likely=method.likely, streamer=run.streamer, layers=method.layers(run.session, run.given),
    )  # fmt: skip
    try:
        call = Call(run.session, input_ids.shape[0], branches, run.given, texts)
        drafters, width = method.drafters(call), method.width(call)
        for drafter, tokens in zip(drafters, _prompts(model, input_ids, model_kwargs), strict=True):
            drafter.begin(tokens)
        draft_and_verify(RowDrafters(drafters, texts.texts, branches, in_step=not spreads), texts, width, run.stats)
    finally:
        texts.close()
    if texts.hidden is not None and texts.hidden.missed:
        run.warnings.append("the head guessed nothing, as a compiled model tells no hidden states: load it uncompiled")
    if run.streamer is not None:
        run.streamer.end()
    written = [text.ids.shape[1] - text.padding - input_ids.shape[1] for text in texts.texts]
    run.tokens, run.longest = run.tokens + sum(written), max(run.longest, *written)
    guided = any(type(each).__name__ in GUIDING for each in logits_processor)  # a pass more for each token
    run.plain_forwards += max(written) * (1 + guided)
    run.stats.forwards += texts.more + guided * sum(written)
    return _output(model, texts, generation_config)


def _forget_removed(memory: dict[str, Any], model: Any) -> None:
    """Forget what was learned of texts where the model has fewer tokens by now, as one that is gone cannot be read."""
    count = getattr(model.config.get_text_config(decoder=True), "vocab_size", 0)
    if count < memory.get(VOCABULARY, 0):
        memory.clear()
    memory[VOCABULARY] = count


def _prompts(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> list[list[int]]:
    """The tokens of each prompt without its padding."""
    mask, length = prompt_mask(model, kwargs), input_ids.shape[1]
    if mask is None or mask.shape[1] < length:
        return input_ids.tolist()
    seen = mask[:, mask.shape[1] - length :].bool()
    return [row[kept].tolist() for row, kept in zip(input_ids, seen, strict=True)]


def _output(model: Any, texts: GeneratedTexts, config: Any) -> Any:
    """What `generate` returns."""
    ids = texts.sequences()
    if not config.return_dict_in_generate:
        return ids
    output: Any = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    cache = cache_of(texts.kwargs)
    return output(sequences=ids, scores=_steps(texts, "scores"), logits=_steps(texts, "logits"), **cached(cache))


def _steps(texts: GeneratedTexts, name: str) -> tuple[torch.Tensor, ...] | None:
    """Scores or logits `[B, V]` of each step, 0 for texts that had ended; None where they are not asked for."""
    kept = [getattr(text, name) for text in texts.texts]
    if kept[0] is None:
        return None
    none = torch.zeros_like(kept[0][0])
    return tuple(torch.cat(step) for step in itertools.zip_longest(*kept, fillvalue=none))


def fill(report: Report, run: DraftedRun) -> None:
    """Say in the report of a call what its drafts saved."""
    stats = run.stats
    report.tokens = run.tokens
    if run.plain_forwards:  # what was saved within, such as by a stored context, stays saved
        report.forwards += stats.forwards + run.left - report.plain_forwards
        report.plain_forwards = run.plain_forwards + run.left
    report.engaged |= stats.accepted > 0  # a method beside it may have
    report.peak_extra_bytes += run.method.learned(run.session.memory)
    report.warnings.extend(run.warnings)
    report.details.update(drafted=stats.drafted, accepted=stats.accepted)
    if run.chains:
        report.details["chains"] = run.chains
    if stats.forwards and not stats.accepted:
        report.warnings.append(_why_nothing(run))
    run.method.tell(report, run.given, run.session.memory)


def _why_nothing(run: DraftedRun) -> str:
    """Why no draft of a call was accepted."""
    if run.stats.drafted:
        return f"none of {run.stats.drafted} drafted tokens was right: this text does not repeat itself"
    why = TOO_SHORT.get(run.longest, run.method.silent)
    return f"nothing was drafted: {why}"
