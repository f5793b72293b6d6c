"""PictureDecoder: follows the passes and the steps of a pipeline that fills a picture with codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mmaccel.session import Session
from mmaccel.stepping.tensors import count_bytes

from .families.following import Follower, pipeline_call
from .late_guidance import LateGuidance
from .method import Block, CanvasMethod, CommitRule, are_changed

Step = Callable[..., Any]


class PictureDecoder(Follower):
    """Pictures that are full are not computed any more, and a pass without any other is left out.

    Attributes
    ----------
    guidance
        Of the methods, where there is one.
    guided
        Whether each pass holds two branches, the one without a prompt first; None until that is known where no call of
        a pipeline says it.
    """

    part = "transformer"

    def __init__(self, session: Session, methods: Sequence[CanvasMethod]) -> None:
        super().__init__(session, methods)
        self.guidance = next((m for m in methods if isinstance(m, LateGuidance)), None)
        self._forget()

    def _forget(self) -> None:
        self._begin()
        self.guided: bool | None = None

    def _begin(self, steps: int = 0) -> None:
        """Forget the last run of the pipeline; the next has this many steps."""
        self.steps, self.step, self.passes, self.computed, self.changed = steps, 0, 0, 0.0, 0
        self.learned: dict[str, Any] = {}
        self.most_learned = 0  # bytes
        self.logits: torch.Tensor | None = None  # of the last pass
        self.last: Any = None  # what the last step gave

    def _start(self, original: Step, *args: Any, **kwargs: Any) -> Any:
        found, call = original(*args, **kwargs), pipeline_call(self.scheduler)
        given = call.f_locals if call else {}
        self.guided = given["guidance_scale"] > 1 if "guidance_scale" in given else None
        self._begin(int(len(self.scheduler.timesteps) * given.get("strength", 1.0)))  # a call may make the last alone
        return found

    def _fill(self) -> None:
        report = self.session.report
        report.forwards, report.plain_forwards = round(self.computed, 3), self.steps
        report.details["passes"] = self.passes
        report.peak_extra_bytes = self.most_learned
        report.engaged = bool(self.changed or self.computed < self.steps)
        if not report.engaged:
            report.warnings.append("no step was changed: all went as the pipeline's own schedule has it")
        elif self.rule is not None and self.rule.replaces and self.passes >= self.steps > 1:
            report.warnings.append(
                f"{self.rule.name} takes all {self.steps} steps of this call and spares no pass: give it fewer, such as"
                f" {self.steps // 2}"
            )

    def _forward(self, original: Step, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """In place of the transformer's pass: only the rows that are still needed."""
        rows = (input_ids == self.scheduler.config.mask_token_id).flatten(1).any(1)
        half = len(rows) // 2
        steps = self.rule.takes(self.steps) if self.rule else self.steps
        late = bool(self.guided) and self.guidance is not None and self.guidance.waits(self.step, steps)
        if late:
            rows[:half] = False
        logits = self.logits
        if logits is None and not rows.any():  # a picture that was given whole
            rows[:] = True
        if logits is None or rows.any():
            self.passes += 1
            self.computed += float(rows.float().mean())
            self.logits = logits = _some(original, rows, input_ids, kwargs)
        return torch.cat([logits[half:]] * 2) if late else logits

    def _step(self, original: Step, model_output: torch.Tensor, **kwargs: Any) -> Any:
        """In place of the scheduler's step: what it draws, at the positions that the rule and it commit."""
        kwargs["model_output"] = model_output
        sample = kwargs["sample"]
        masked = sample == self.scheduler.config.mask_token_id
        if self.logits is not None and self.guided is None:
            self.guided = len(self.logits) > len(sample)
        if self.rule is None:
            self.last = original(**kwargs)  # which masks a code of a picture that is full, whatever the logits
        elif masked.any() or self.last is None:
            self.last = self._by_rule(self.rule, original, kwargs, masked)
        self.step += 1
        return self.last

    def _by_rule(self, rule: CommitRule, original: Step, kwargs: dict[str, Any], masked: torch.Tensor) -> Any:
        sample, grid = kwargs["sample"], kwargs["model_output"]
        given = grid.flatten(2).mT
        logits = rule.adjust(given, masked.flatten(1), self.learned)
        out = original(**{**kwargs, "model_output": logits.mT.unflatten(2, grid.shape[2:])})
        drawn = out.pred_original_sample.flatten(1)
        chances = logits.float().softmax(-1).gather(2, drawn[..., None])[..., 0]
        size = (grid.shape[2], grid.shape[3])
        block = Block(logits.float(), drawn, chances, masked.flatten(1), self.step, self.steps, self.learned, size)
        own = (out.prev_sample == out.pred_original_sample) & masked
        last = int(kwargs["timestep"]) == 0
        chosen = rule.choose(block).view_as(masked) & masked
        self.most_learned = max(self.most_learned, count_bytes(self.learned))
        committed = chosen if rule.replaces and not last else chosen | own
        self.changed += bool((committed != own).any()) or are_changed(given, logits)
        out.prev_sample = torch.where(committed, out.pred_original_sample, sample)
        return out


def _some(original: Step, rows: torch.Tensor, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """Logits of some rows of a batch; nothing for the others."""
    if rows.all():
        return original(input_ids, **kwargs)
    batched = {k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor) and len(v) == len(rows)}
    part = original(input_ids[rows], **{**kwargs, **{name: value[rows] for name, value in batched.items()}})
    return part.new_zeros(len(rows), *part.shape[1:]).index_put((rows,), part)
