"""UniformDecoder: follows a pipeline whose canvases begin as random tokens, in place of masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from mmaccel.session import Session
from mmaccel.stepping.tensors import count_bytes

from . import private
from .families.following import Follower
from .method import Block, CanvasMethod, CommitRule, are_changed
from .verifiers.free_dave import FreeDave
from .verifiers.lookahead import Lookahead

FOLLOWED = {"decoder_input_ids", "self_conditioning_logits"}  # what the pipeline gives each pass, by name


class UniformDecoder(Follower):
    """Computes passes ahead, and one alone of a canvas that no step changes any more.

    Attributes
    ----------
    lookahead
        Of `FreeDave` where it is among the methods; else it computes each pass when it is asked for.
    """

    def __init__(self, session: Session, methods: Sequence[CanvasMethod]) -> None:
        super().__init__(session, methods)
        dave = next((m for m in methods if isinstance(m, FreeDave)), None)
        self.lookahead = Lookahead(dave.drafts if dave else 1, self.scheduler, self.model.dtype)
        self._forget()

    def _forget(self) -> None:
        self.learned: dict[str, Any] = {}
        self.begun_canvases = self.spared = self.changed = 0
        self.most_learned = 0  # bytes
        self.full = False  # whether no step changes the canvas any more
        self.last: tuple[torch.Tensor, torch.Tensor] | None = None  # such a canvas, and its logits
        self.lookahead.begin()

    def _start(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._forget()
        return original(*args, **kwargs)

    def _fill(self) -> None:
        report, ahead = self.session.report, self.lookahead
        asked = ahead.asked + self.spared
        # a pipeline that may leave a canvas before its last step would leave the one without the rule elsewhere
        known = not self.changed or asked >= self.begun_canvases * self.scheduler.num_inference_steps
        report.forwards, report.plain_forwards = ahead.passes, asked if known else 0
        report.engaged = bool(self.changed or self.spared or ahead.passes < ahead.asked)
        report.peak_extra_bytes = ahead.most_bytes + self.most_learned
        report.details |= {"passes": ahead.passes, "canvases": ahead.canvases}
        report.warnings += ahead.warnings
        if not report.engaged and not report.warnings:
            report.warnings.append("no pass was saved: each canvas took the pipeline's own steps")

    def _forward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if args or not kwargs.keys() >= FOLLOWED:  # a pass of somebody else than the pipeline
            return original(*args, **kwargs)
        canvas = kwargs["decoder_input_ids"]
        if kwargs["self_conditioning_logits"] is None:  # a canvas begins
            self.begun_canvases += 1
            self.full, self.last = False, None
        if self.last is not None and torch.equal(self.last[0], canvas):
            self.spared += 1
            return SimpleNamespace(logits=self.last[1])
        logits = self.lookahead.compute(original, kwargs)
        self.last = (canvas, logits) if self.full else None  # by which the pipeline may stop and write
        return SimpleNamespace(logits=logits)

    def _step(self, original: Callable[..., Any], model_output: torch.Tensor, **kwargs: Any) -> Any:
        """In place of the scheduler's step."""
        kwargs["model_output"] = model_output
        self.lookahead.note(kwargs)
        return original(**kwargs) if self.rule is None else self._by_rule(self.rule, original, kwargs)

    def _by_rule(self, rule: CommitRule, original: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        scheduler, sample, step = self.scheduler, kwargs["sample"], int(kwargs["timestep"])
        if step == 0:
            self.learned = {}
        open_ = ~private.committed(scheduler, sample, step)
        logits = rule.adjust(kwargs["model_output"], open_, self.learned)
        out = original(**{**kwargs, "model_output": logits})
        chances = out.sampled_probs.float()
        steps = max(int(scheduler.num_inference_steps), 1)
        block = Block(logits.float(), out.sampled_tokens, chances, open_, step, steps, self.learned)
        added = rule.choose(block) & open_ & ~out.transfer_index
        self.most_learned = max(self.most_learned, count_bytes(self.learned))
        self.changed += bool(added.any()) or are_changed(kwargs["model_output"], logits)
        if added.any():
            private.commit(scheduler, added)
            out.prev_sample = torch.where(added, out.sampled_tokens, out.prev_sample)
            out.transfer_index = out.transfer_index | added
        edits = scheduler.config.editing_threshold is not None
        self.full = not edits and bool((~open_ | out.transfer_index).all())
        return out
