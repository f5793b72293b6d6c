"""Dropping visual tokens inside the language model: from some layer on it has fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.cache.argument import cache_of
from mmaccel.decoding.setting import setting
from mmaccel.machine import unrounded

from ..decoder.call import AttentionCall, GenerateRun
from ..decoder.columns import Columns, before_layers
from ..input.prompt import NO_PLACE, Prompt
from .clustering import means
from .compressed import top
from .row import Cut, Row


class Cuts:
    """Applies the cuts of a method in one call of `generate`, and remembers them for the calls that follow.

    Parameters
    ----------
    method
        Name of the method, for the report.
    cuts
        For each layer before which visual tokens are dropped, what stays.
    prompt
        What the decoder gets.
    attends
        Whether each layer attends; others, of hybrids, have a state instead.
    """

    def __init__(
        self, method: str, cuts: dict[int, Cut], prompt: Prompt, run: GenerateRun, attends: Sequence[bool]
    ) -> None:
        self.method, self.cuts, self.prompt, self.run, self.attends = method, cuts, prompt, run, attends
        self.watched = {max(layer for layer in range(cut) if attends[layer]) for cut in cuts}
        self.length = prompt.input_ids.shape[1]
        self.begun, self.filling = False, True
        self.kept: dict[int, int] = {}
        self.copies = 1  # rows of one prompt: beams
        self.scores: torch.Tensor | None = None
        self.columns: dict[int, Columns] = {}  # by layer
        self.begin_call()

    def begin_call(self) -> None:
        """A call of `generate` begins, whose passes are those with the cache of its first one."""
        self.cache: int | None = None  # its id, as it lives as long as the call; compiled code makes no weak reference
        self.apart = False  # this pass is of something else, such as guidance

    def mean_kept(self, layers: int) -> float:
        """Visual tokens of the prompts, a mean over the layers."""
        counts = [float(self.prompt.kept)] * layers
        for layer, kept in self.kept.items():
            counts[layer:] = [kept / self.copies] * (layers - layer)
        return sum(counts) / layers

    def watch(self, call: AttentionCall) -> None:
        """After a layer has attended: keep the last token's attention, if a later layer needs it."""
        if self.filling and not self.apart and call.layer_idx in self.watched and call.queries > 1:
            self.scores = _last_attention(call)

    def before(self, layer: int, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """Hidden states that a layer gets, and in `kwargs` masks and positions that fit them."""
        if layer == 0:
            cache = id(cache_of(kwargs))
            self.cache = cache if self.cache is None else self.cache
            self.apart = self.cache != cache
            if not self.apart:
                self._begin(hidden.shape[1])
        if self.apart:
            return hidden
        if layer in self.cuts and self.filling:
            hidden = self._cut(layer, hidden)
        at = max((cut for cut in self.columns if cut <= layer), default=None)
        if at is None:
            return hidden
        columns = self.columns[at]
        if self.filling:
            columns.fill(kwargs, self.attends[layer])
        elif self.attends[layer]:
            held = cache_of(kwargs).get_seq_length(layer)
            kwargs["attention_mask"] = columns.later_mask(kwargs.get("attention_mask"), hidden.shape[1], held)
        return hidden

    def _begin(self, tokens: int) -> None:
        """The first pass is the prompt, all of it, or nothing is dropped."""
        self.filling, self.begun = not self.begun, True
        if self.filling and tokens != self.length:
            self.filling = False
            self.run.warn("nothing was dropped inside the language model: the prompt came in several chunks")

    def _cut(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        if self.scores is None:
            self.run.warn(f"nothing was dropped before layer {layer}: the attention before it could not be read")
            return hidden
        rows, device = len(hidden), hidden.device  # a spread model has the layer before this one on another
        self.copies = rows // len(self.prompt.input_ids)
        earlier = self.columns.get(max(self.columns, default=-1))
        if earlier is None:
            mask = self.prompt.attention_mask.bool().repeat_interleave(self.copies, 0).to(device)
            columns = torch.arange(hidden.shape[1], device=device).expand(rows, -1)
        else:
            columns, mask = earlier.index.to(device), earlier.real.to(device)
        self.scores = self.scores.to(device)
        kept = [self._row(layer, row, hidden[row, mask[row]], mask, columns) for row in range(rows)]
        width = max(len(index) for index, _ in kept)
        result = hidden.new_zeros(rows, width, hidden.shape[2])
        new, scores = columns.new_zeros(rows, width), self.scores.new_zeros(rows, width)
        missing = columns.new_tensor([width - len(index) for index, _ in kept])
        real = torch.arange(width, device=device) >= missing[:, None]
        for row, (index, states) in enumerate(kept):
            result[row, width - len(index) :] = states
            new[row, width - len(index) :] = columns[row, mask[row]][index]
            scores[row, width - len(index) :] = self.scores[row, mask[row]][index]
        self.columns[layer], self.scores = Columns(new, real, self.length), scores
        return result

    def _row(self, layer: int, row: int, hidden: torch.Tensor, mask: torch.Tensor, columns: torch.Tensor) -> Any:
        source = row // self.copies
        at = columns[row, mask[row]]
        number, anchor = (part[source].to(at.device)[at] for part in (self.prompt.number, self.prompt.anchor))
        assert self.scores is not None
        total = int((self.prompt.number[source] != NO_PLACE).sum())
        scores = self.scores[row, mask[row]]
        visual = number != NO_PLACE
        index, states = self.cuts[layer](Row(hidden, visual, number, anchor, self.prompt.cells, scores, total))
        self.kept[layer] = self.kept.get(layer, 0) + int(visual[index].sum())
        if len(index) < len(hidden):
            self.run.engaged.add(self.method)
        return index, states


def install(layers: Iterable[torch.nn.Module], cuts: Callable[[], Cuts | None], stack: ExitStack) -> None:
    """Let `cuts()`, if there are any in this call, act before each layer of a decoder until the stack is closed."""

    def act(layer: int, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor | None:
        active = cuts()
        return None if active is None else active.before(layer, hidden, kwargs)

    before_layers(layers, torch.compiler.disable(act), stack)  # what changes from call to call is not compiled


def why_uncut(target: Any, text_config: Any, kwargs: dict[str, Any]) -> str | None:
    """Why a call of `generate` cannot have layers whose caches differ in length; None if it can."""
    types = set(getattr(text_config, "layer_types", None) or ())
    reasons = {
        "some of its layers have a sliding window": "sliding_attention" in types,
        "some of its layers attend in chunks": "chunked_attention" in types,
        "it does not attend in full": bool(types) and "full_attention" not in types,
        "use_cache=False was given": setting(target, kwargs, "use_cache") is False,
        "a cache_implementation was given": setting(target, kwargs, "cache_implementation") is not None,
        "a cache of fixed length was given": getattr(cache_of(kwargs), "is_compileable", False),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


def by_attention(count: Callable[[int], int], merge: bool) -> Cut:
    """Keep the visual tokens that the last token attends to most.

    Parameters
    ----------
    count
        How many to keep, of how many there were before the first cut.
    merge
        Whether every other joins the most similar one that is kept, which becomes their mean (HoliTom).
    """

    def cut(row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        visual = row.visual.nonzero().squeeze(1)
        wanted = count(row.total)
        if wanted >= len(visual):
            return row.keeping(visual)
        best = torch.zeros_like(visual, dtype=torch.bool)
        best[top(row.scores[visual], wanted)] = True
        kept, rest = visual[best], visual[~best]
        return row.keeping(kept, _merged(row.hidden, kept, rest) if merge else None)

    return cut


def late_merging(layers: int, layer: int | None, keep: float) -> dict[int, Cut]:
    """HoliTom's inner stage in a decoder of so many layers: before `layer`, or 18/28 of the depth, keep a share."""
    if keep == 1.0:
        return {}
    at = round(layers * 18 / 28) if layer is None else layer
    return {at: by_attention(lambda total: max(1, round(keep * total)), merge=True)}


def _merged(hidden: torch.Tensor, kept: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Hidden states in which each kept token is the mean of itself and of the dropped tokens nearest to it."""
    unit = torch.nn.functional.normalize(hidden.float(), dim=-1)
    with unrounded(unit.device.type):
        nearest = (unit[rest] @ unit[kept].T).argmax(1)
    owner = torch.cat([torch.arange(len(kept), device=kept.device), nearest])
    merged = hidden.clone()
    merged[kept] = means(hidden[torch.cat([kept, rest])], owner, len(kept))[0].to(hidden.dtype)
    return merged


def _last_attention(call: AttentionCall) -> torch.Tensor:
    """Attention of the last token, mean over heads, float32 `[B, N]`; 0 at padding."""
    group = call.query.shape[1] // call.key.shape[1]
    scale = call.query.shape[-1] ** -0.5 if call.scaling is None else call.scaling
    query = call.query[:, :, -1].unflatten(1, (-1, group))  # [B, Hkv, group, D]
    with unrounded(query.device.type):
        scores = (query.float() @ call.key.float().transpose(2, 3)) * scale
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask[:, :1, -1:], float("-inf"))
    return scores.softmax(-1).mean((1, 2))
