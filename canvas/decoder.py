"""BlockDecoder: follows the passes and the steps of a pipeline, and puts those of the methods in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.patching import attention_layers, intercept_attention, wrap_method
from mmaccel.session import Session
from mmaccel.stepping.tensors import count_bytes

from .caches.kept import NOT_THE_END, other_blocks, why_apart, with_places
from .caches.kept_prefix import KeptPrefix
from .caches.kept_window import KeptWindow
from .families.following import Follower
from .method import SAMPLED, Block, CanvasMethod, CommitRule, are_changed
from .outlooks.outlook import Outlook, Seen
from .private import drawn, edits_committed, is_greedy
from .text_ends import TextEnds
from .verifiers.free_dave import FreeDave
from .verifiers.guided_commit import of_next, said_by
from .verifiers.verify import Verifier, repeated

if TYPE_CHECKING:
    from .families.block_pipeline import BlockPipelineAdapter

Step = Callable[..., Any]


class BlockDecoder(Follower):
    """Follows the blocks of a text, one after the other.

    Attributes
    ----------
    outlooks, verifier, prefix
        Of the methods, where there are such.
    """

    def __init__(self, session: Session, methods: Sequence[CanvasMethod]) -> None:
        super().__init__(session, methods)
        adapter: BlockPipelineAdapter = session.adapter
        self.adapter = adapter
        dave = next((m for m in methods if isinstance(m, FreeDave)), None)
        self.outlooks = [m for m in methods if isinstance(m, Outlook)]
        self.verifier = Verifier(dave.drafts, self._pass, self._is_over) if dave else None
        keepers = [m.keeper(adapter.reads_causally, lambda: self.mask) for m in methods]
        self.prefix = next((keeper for keeper in keepers if keeper is not None), None)
        windows = [m for m, keeper in zip(methods, keepers, strict=True) if isinstance(keeper, KeptWindow)]
        self.unsampled = [f"{m.name} {SAMPLED}" for m in (*self.outlooks, *windows)]  # warnings where tokens are drawn
        self.mask = adapter.target.mask_token_id
        self._looks = self.scheduler.check_eos_finished
        self._forget()

    def _forget(self) -> None:
        self._know_nothing()
        self._begin()

    def _know_nothing(self) -> None:
        """Of the arguments of a call that is not the session's."""
        self.ends = TextEnds(self.adapter.target.eos_token_id, self._looks)
        self.guide: Any = None  # a causal model of the same vocabulary, of the call

    def _begin(self, length: int = 0) -> None:
        """Forget the last run of the pipeline; `length` tokens are a block of the next."""
        self.length, self.learned = length, dict[str, Any]()
        self.most_learned = 0  # bytes
        self.computed, self.passes, self.changed = 0.0, 0, 0
        self.samples = False  # whether steps draw tokens at random
        self.acted = 0  # steps in which the rule committed more than the pipeline, or had it decide by other logits
        self.threshold: float | None = None  # by which the pipeline committed beside the rule
        self.plain_steps = self.block_steps = 0.0  # that the pipeline would have made, in all and for this block
        self.followed = True  # whether the number of plain passes is known
        self.call: tuple[Callable[..., Any], torch.Tensor, dict[str, Any]] | None = None
        self.finished: torch.Tensor | None = None  # rows whose text has ended
        self.prompt: int | None = None  # tokens of it
        self.filled: torch.Tensor | None = None  # logits that a block without masks gets, where none are needed
        for part in (self.prefix, self.verifier):
            if part is not None:
                part.begin()

    def attach(self, stack: ExitStack) -> None:
        super().attach(stack)
        if self.prefix is not None:
            intercept_attention(stack, attention_layers(self.model), self.prefix.attend)
        wrap_method(stack, self.scheduler, "check_eos_finished", functools.partial(self._in_run, self._note_finished))
        wrap_method(
            stack, self.scheduler, "check_block_should_continue", functools.partial(self._in_run, self._continue)
        )

    def _start(self, original: Step, *args: Any, **kwargs: Any) -> Any:
        pipe = self.adapter.target
        if not self.called:
            self._know_nothing()
        self._begin(kwargs.get("block_length") or pipe.scheduler.config.block_length)
        if self.called:
            own, report = getattr(pipe.model, "block_length", self.length), self.session.report
            cached = self.exact and isinstance(self.prefix, KeptPrefix)
            report.exact = self.exact and not (cached and self.length != own)
            if self.length != own:
                report.warnings.append(other_blocks(own, self.length, cached))
        return original(*args, **kwargs)

    def _fill(self) -> None:
        report = self.session.report
        report.forwards = round(self.computed, 3)
        report.plain_forwards = self.plain_steps if self.followed else 0
        report.engaged = bool(self.changed or (self.prefix and self.prefix.reused))
        report.details["passes"] = self.passes
        kept = [part.most_bytes for part in (self.prefix, self.verifier) if part is not None]
        report.peak_extra_bytes = sum(kept) + self.most_learned
        if self.verifier is not None:
            report.details["canvases"] = self.verifier.canvases
            report.warnings += self.verifier.warnings
            report.exact &= not (self.verifier.edited and self.verifier.jumps)
        if self.rule is not None and self.threshold is not None and self.threshold < 1 and not self.acted:
            report.warnings.append(
                f"the call's threshold={self.threshold:g} commits all that {type(self.rule).__name__} would: pass"
                " threshold=2, so that it decides alone"
            )
        if self.samples:
            report.warnings += self.unsampled
        if not report.engaged and not report.warnings:
            report.warnings.append("no step was changed: each block took the pipeline's own steps")

    def _forward(self, original: Callable[..., Any], input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """In place of the model's pass: logits that are known already or that nobody needs, or a pass."""
        self.call = (original, input_ids, kwargs if self.prefix is None else with_places(input_ids, kwargs))
        if self.filled is not None and not self._waiting(input_ids[:, -self.length :]).any():
            return SimpleNamespace(logits=self.filled)
        known = None if self.verifier is None else self.verifier.known(input_ids)
        return SimpleNamespace(logits=self._pass(input_ids) if known is None else known)

    def _pass(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of a canvas or of several for each row, `[B * K, N]`; only of the block where that is enough."""
        assert self.call is not None
        original, own, kwargs = self.call
        kwargs = {name: repeated(value, len(ids)) for name, value in kwargs.items()}
        self.passes += 1
        if self.prefix is None or (self.samples and isinstance(self.prefix, KeptWindow)):
            self.computed += 1
            return original(ids, **kwargs).logits
        logits, share = self.prefix.compute(original, ids, len(own), self.length, kwargs)
        self.computed += share
        return logits

    def _step(self, original: Step, model_output: torch.Tensor, **kwargs: Any) -> Any:
        """In place of the scheduler's step."""
        reads_more = self.verifier is not None or self.rule is not None  # passes, which may write over this one's
        kwargs["model_output"] = model_output.clone() if reads_more else model_output
        sample, mask = kwargs["sample"], kwargs.get("mask_token_id")
        if mask is None:
            return original(**kwargs)
        masked, self.mask, self.samples = sample == mask, mask, not is_greedy(kwargs)
        self._check_end(sample)
        filling = bool(self._waiting(sample).any())
        edits = edits_committed(self.scheduler, kwargs)
        self.filled = None if edits or self.call is None else kwargs["model_output"]
        if int(kwargs["timestep"]) == 0:
            self.learned, self.block_steps = {}, 0.0
        if self.verifier is not None and self.call is not None and filling:
            if self.prompt is None:  # the first block begins within it, or where it ends
                told = kwargs.get("prompt_mask")
                self.prompt = self.call[1].shape[1] - sample.shape[1] + (0 if told is None else int(told.sum()))
            step = functools.partial(self._seen_otherwise, original) if self.outlooks else original
            before = max(self.verifier.made, default=0) if self.block_steps else 0
            out = self.verifier.step(step, self.call[1], kwargs, self.finished, self._steps, edits)
            self._take(max(self.verifier.made) - before)
            self.followed &= not self.verifier.edited
            self.changed += self.verifier.jumps > 0
            return out
        if self.outlooks and filling:
            kwargs["model_output"] = self._adjusted(kwargs)
        if self.rule is None or not filling:
            edited = edits and not masked.any()  # for which the pipeline makes steps beyond those of the schedule
            self._take(1 if filling or edited else min(1, self._steps - self.block_steps))
            return original(**kwargs)
        return self._by_rule(self.rule, original, kwargs, self._unfinished(masked))

    def _check_end(self, block: torch.Tensor) -> None:
        """Forget a pass whose canvas does not end with the block of its step, or of other rows: both only by hand.

        Raises an `UnsupportedTargetError` if a method takes the end for the block.
        """
        if self.own is None and self.call is not None and (why := why_apart(self.call[1], block, self.mask)):
            if self.verifier is not None or (self.prefix is not None and why == NOT_THE_END):
                why += "" if self.verifier else "; for guidance give both texts in one batch"
                raise UnsupportedTargetError(f"{', '.join(self.session.report.methods)}: {why}")
            self.call = None

    def _waiting(self, block: torch.Tensor) -> torch.Tensor:
        """Which rows of a block `[B, L]` have masks that will be filled, `[B]`: not those of texts that have ended."""
        return self._unfinished(block == self.mask).any(1)

    def _unfinished(self, places: torch.Tensor) -> torch.Tensor:
        """Of positions of a block `[B, L]`, those in texts that have not ended."""
        return places if self.finished is None else places & ~self.finished[:, None]

    def _continue(self, original: Callable[..., Any], step_idx: int, **kwargs: Any) -> Any:
        """Whether the pipeline stays with a block: as long as it would without jumps."""
        self.ends.known = True  # where texts end early, it has looked for their ends
        if self.verifier is not None and self.call is not None and self.verifier.foresees:
            block = self.call[1][:, -self.length :]
            waiting = self._waiting(block)
            rests = bool((block == self.mask).any()) and not waiting.any()
            step_idx = int(self.block_steps) if rests else self.verifier.reached(waiting)
        return original(step_idx, **kwargs)

    def _seen_otherwise(self, original: Step, **kwargs: Any) -> Any:
        """The scheduler's step, by logits that methods have changed."""
        return original(**{**kwargs, "model_output": self._adjusted(kwargs)})

    def _adjusted(self, kwargs: dict[str, Any]) -> torch.Tensor:
        """Logits as the methods change them."""
        logits, tokenizer = kwargs["model_output"], getattr(self.adapter.target, "tokenizer", None)
        for method in () if self.samples else self.outlooks:
            logits = method.adjust(Seen(logits, kwargs["sample"], kwargs["mask_token_id"], self.ends.token, tokenizer))
        if are_changed(kwargs["model_output"], logits):
            self.changed, self.followed = self.changed + 1, False
        return logits

    def _by_rule(self, rule: CommitRule, original: Step, kwargs: dict[str, Any], masked: torch.Tensor) -> Any:
        memory, step = self.learned, int(kwargs["timestep"])
        logits = rule.adjust(kwargs["model_output"], masked, memory)
        out = original(**{**kwargs, "model_output": logits})
        sampled = out.sampled_tokens, out.sampled_probs.float()
        # however many it is given, its schedule commits a token in each
        block = Block(logits.float(), *sampled, masked, step, min(self._steps, self.length), memory)
        block.generator = kwargs.get("generator")
        if self.samples:
            block.drawn = drawn(self.scheduler, kwargs)
        reads = self.guide is not None or getattr(self.adapter.target.model, "writes_word_by_word", False)
        if reads and self.call is not None:
            block.read = functools.partial(self._read, kwargs["sample"], masked)
        chosen = rule.choose(block) & masked
        self.most_learned = max(self.most_learned, count_bytes(memory))
        added = chosen & ~out.transfer_index
        own = int(self._unfinished(out.transfer_index).sum(1).amax())
        acted = bool(added.any()) or are_changed(kwargs["model_output"], logits)
        self.acted += acted
        self.changed += acted
        out.prev_sample = torch.where(chosen, out.sampled_tokens, out.prev_sample)  # the rule may have drawn others
        out.transfer_index = out.transfer_index | added
        counted = self._unfinished(out.transfer_index) & self.ends.within(out.prev_sample, kwargs.get("prompt_mask"))
        most = int(counted.sum(1).amax())
        self.threshold = kwargs.get("threshold")
        self.followed &= self.threshold is None or self.threshold >= 1
        self._take(min(max(most / max(own, 1), 1), self._steps - self.block_steps))
        return out

    def _take(self, steps: float) -> None:
        """Count steps that the pipeline would have made; in all and for this block."""
        self.plain_steps += max(steps, 0)
        self.block_steps += max(steps, 0)

    @property
    def _steps(self) -> int:
        """The most that the pipeline takes for a block."""
        return max(int(self.scheduler.num_inference_steps), 1)

    def _read(self, sample: torch.Tensor, masked: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token of the block by those before it alone, with tokens at the masked positions."""
        assert self.call is not None
        original, ids, kwargs = self.call
        ids = torch.cat([ids[:, : -self.length], torch.where(masked, tokens, sample)], 1)
        if self.guide is not None:
            return of_next(said_by(self.guide, ids, self.length, kwargs), self.length)
        self.passes += 1
        with self.adapter.target.model.word_by_word():
            if isinstance(self.prefix, KeptPrefix) and self.prefix.prefix > 1:
                logits, share = self.prefix.read(original, ids, kwargs)
            else:
                logits, share = original(ids, **kwargs).logits, 1.0
        self.computed += share
        return of_next(logits, self.length)

    def _note_finished(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Which rows the pipeline takes for finished, and rests from then on."""
        self.ends.know(kwargs["eos_token_id"])
        self.finished = original(*args, **kwargs)
        return self.finished

    def _is_over(self, row: int, before: torch.Tensor, after: torch.Tensor) -> bool:
        """Whether a text is finished, or may be, after a step of its row from one block to another."""
        if self.call is None:
            return False
        ids = torch.cat([self.call[1][row, : -len(after)], after])
        return self.ends.over(ids, after, after != before, mask_token_id=self.mask, prompt_length=self.prompt)

    def prepare(self, kwargs: dict[str, Any]) -> None:
        """Take from the arguments of a call of the session which token ends a text, which no pass and step is told."""
        given = kwargs.get("eos_token_id")
        self.ends = TextEnds(self.adapter.target.eos_token_id if given is None else given, self._looks)
        self.ends.know(self.ends.token if kwargs.get("eos_early_stop", True) else None)
