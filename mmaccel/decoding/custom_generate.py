"""Drafts without a session: as the `custom_generate` of plain transformers, or one by one for another engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mmaccel.errors import SettingError
from mmaccel.linears.skinny import skinny_linears
from mmaccel.locks import lock_of
from mmaccel.plan import plan
from mmaccel.report import Report

from .generation import Call, DraftedRun, decode, fill
from .row_drafters import TextDrafter
from .unfit import reason_to_leave

if TYPE_CHECKING:
    from .drafters.draft_method import DraftMethod


class CustomGenerate:
    """The drafts of a method for `generate` of an untouched model; made by `DraftMethod.custom_generate`.

    What is learned is kept from one call to the next, for one model, whose passes of a few tokens go through
    :func:`~mmaccel.linears.skinny.skinny_linears` while it is called. Calls of several threads wait for their turn.
    transformers hands no streamer and no tokenizer to a `custom_generate`: with a streamer, use a session; in place of
    `stop_strings` pass ``stopping_criteria=[StopStringCriteria(tokenizer, [...])]``.

    Parameters
    ----------
    method
        Of drafts, such as ``vlm.FusedDraft()``.

    Attributes
    ----------
    report
        Of the last call.

    Raises
    ------
    SettingError
        When called, with beams or for another model than before.
    UnsupportedTargetError
        When called for a model that a session with the method refuses, such as one that is split over processes with
        drafts that are made where they are worth their cost.

    Examples
    --------
    >>> drafts = vlm.FusedDraft().custom_generate()  # doctest: +SKIP
    >>> tokens = model.generate(**inputs, max_new_tokens=200, custom_generate=drafts)  # doctest: +SKIP
    >>> print(drafts.report)  # doctest: +SKIP

    An engine that verifies itself asks a drafter of each text, and tells it what became of the draft:

    >>> from mmaccel import vlm
    >>> from mmaccel.decoding import Verdict
    >>> (drafter,) = vlm.SuffixDecoding(shortest=1).custom_generate().drafters()
    >>> drafter.begin([5, 6, 7, 5])
    >>> drafter.propose(4).tokens
    (6, 7)
    >>> drafter.observe(Verdict(path=(0,), tokens=(6, 9)))
    """

    def __init__(self, method: DraftMethod) -> None:
        self.method, self.memory = method, dict[str, Any]()
        self.report = Report([str(method)], method.exact)
        self.target: Any = SimpleNamespace(config=None)  # the model, once it has called

    def drafters(self, rows: int = 1, branches: bool = True) -> Sequence[TextDrafter]:
        """A drafter for each text of a batch; drafts are chains without `branches`."""
        return self.method.drafters(Call(self, rows, branches))

    def __call__(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        prediction: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """The loop of `generate`, as transformers calls it."""
        self._belongs_to(model)
        reason = reason_to_leave(model, vars(generation_config))
        if reason is not None:
            raise SettingError(f"drafts do not go with {reason}: call generate without custom_generate=")
        told = {} if prediction is None else {"prediction": prediction}
        run = DraftedRun(self, self.method, self.method.take(model, told))
        with lock_of(model), ExitStack() as stack:  # the masks of a pass lie with the layers
            self.report.start()
            self.report.unfinished, began = True, time.perf_counter()
            if self.method.block:
                skinny_linears(stack, model)
            result = decode(
                run, model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs
            )
            self.report.wall_seconds, self.report.unfinished = time.perf_counter() - began, False
            fill(self.report, run)
        return result

    def _belongs_to(self, model: Any) -> None:
        if self.target.config is None:
            plan(model, self.method)  # which checks that they fit each other
            self.method.require_fit(model)
            self.target = model
        if self.target is not model:
            raise SettingError(
                f"these drafts learned from another {type(self.target).__name__}: "
                f"make others for this model with {type(self.method).__name__}(...).custom_generate()"
            )


def is_drafted(loop: Any) -> bool:
    """Whether a `custom_generate` is a loop with drafts, of a session or without one."""
    return isinstance(loop, CustomGenerate) or getattr(loop, "func", None) is decode
