"""A prompt with fewer visual tokens: the columns that stay, and the session's memory of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmaccel.errors import PromptError

from ..decoder.columns import taken
from ..pruning.compressor import Compressor
from .visual import Visual

NO_PLACE = -1


@dataclass
class Prompt:
    """The shortened prompt that `generate` receives.

    Attributes
    ----------
    full_ids : `[B, L]`
        The original prompt.
    input_ids, attention_mask : `[B, K]`
        With fewer placeholders, padded on the left.
    position_ids
        `[axes, B, K]` if positions do not simply count up: a count, and the original time, row and column.
    visuals
        For each kind of placeholder the visuals that are new in this call.
    source : int64 `[B, K]`
        Columns of the original prompt; -1 for padding.
    number, anchor : int64 `[B, K]`
        For each token that shows something, the visual that it belongs to, and its place among the
        ``frames * cells``; -1 elsewhere.
    cells
        Tokens per frame of each visual.
    sizes : list of `[F, rows, columns]`
        For each visual that is new in this call, the number of tokens that each is the mean of; 0 for dropped ones.
    starts
        Row and first column of each of these visuals in the original prompt.
    kept, total
        Tokens that show something, kept and originally.
    cached
        Columns that an earlier call has seen.
    full_lengths
        Tokens of each original prompt, and the number of them whose keys an earlier call has computed.
    answered
        Columns of the last answer, at the end.
    counted
        Whether the first of the positions is a count, instead of an axis of its own.
    """

    full_ids: torch.Tensor
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor | None
    visuals: dict[str, list[Visual]]
    source: torch.Tensor
    number: torch.Tensor
    anchor: torch.Tensor
    cells: list[int] = field(default_factory=list)
    sizes: list[torch.Tensor] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    kept: int = 0
    total: int = 0
    cached: int = 0
    full_lengths: list[tuple[int, int]] = field(default_factory=list)
    answered: int = 0
    counted: bool = True

    def continued(self, sequences: torch.Tensor) -> Prompt:
        """The cache's content after a call that returned `sequences`, which begin with `input_ids`."""
        new = sequences[:, self.input_ids.shape[1] :]
        position_ids = self.position_ids
        if position_ids is not None:
            position_ids = torch.cat([position_ids, _next(position_ids, torch.ones_like(new))], -1)
        return replace(
            self,
            full_ids=torch.cat([self.full_ids, new], 1),
            input_ids=sequences,
            attention_mask=_extended(self.attention_mask, torch.ones_like(new)),
            position_ids=position_ids,
            visuals={},
            source=_extended(self.source, self.full_ids.shape[1] + torch.ones_like(new).cumsum(1) - 1),
            answered=new.shape[1],
            number=_extended(self.number, torch.full_like(new, NO_PLACE)),
            anchor=_extended(self.anchor, torch.full_like(new, NO_PLACE)),
        )

    def of_columns(self, values: torch.Tensor) -> torch.Tensor:
        """What remains of values of each column of the original prompt, `[B, L]`; 0 for padding."""
        return taken(values, self.source.clamp(min=0), -1).masked_fill(self.source < 0, 0)

    def restored(self, sequences: torch.Tensor) -> torch.Tensor:
        """Sequences of `generate` with the original prompt; one of a batch may come alone, as with drafts."""
        length, rows = self.input_ids.shape[1], len(sequences) // len(self.full_ids)
        own = (self.input_ids == sequences[:1, :length]).all(1)
        whole = self.full_ids.repeat_interleave(rows, 0) if rows else self.full_ids[own][:1]
        return torch.cat([whole, sequences[:, length:]], 1)


def shortened(
    method: Compressor,
    found: dict[str, list[Visual]],
    token_ids: dict[str, int],
    kwargs: dict[str, Any],
    positions: Callable[[dict[str, Any]], torch.Tensor | None],
    pad: int,
    before: Prompt | None,
    counted: bool = True,
) -> Prompt:
    """Let a method shorten each visual, and drop the placeholders that have lost their tokens.

    Raises
    ------
    PromptError
        If placeholders and features differ in number, or the prompt does not go on from `before`.
    """
    full_ids = kwargs["input_ids"]
    seen = 0 if before is None else before.full_ids.shape[1]
    if before is not None:
        _require_more(full_ids, kwargs["attention_mask"], before)
    ids, mask = full_ids[:, seen:], kwargs["attention_mask"]
    held = mask[:, : max(0, seen - 1)]  # the last token of an answer was never in the decoder
    lengths = list(zip(mask.sum(1).tolist(), held.sum(1).tolist(), strict=True))
    before = None if before is None else _as_told(before, mask[:, :seen])
    mask = mask[:, seen:].bool()
    left = _Left(ids, mask, first=0 if before is None else len(before.cells))
    for kind, visuals in found.items():
        for row, columns, visual in _placed(kind, visuals, full_ids, token_ids[kind], seen):
            left.add(kind, row, columns, visual, method)
    input_ids, source, valid = left.columns(pad)
    position_ids = _positions(kwargs, found, token_ids, positions, before)
    if position_ids is not None:
        position_ids = taken(position_ids, source.clamp(min=0), -1).masked_fill(~valid, 1)
    elif before is not None and before.position_ids is not None:
        position_ids = _next(before.position_ids, valid)
    if position_ids is not None and counted:
        position_ids[0] = (valid.cumsum(1) - 1).clamp(min=0)  # gaps would be read as packed sequences
    prompt = Prompt(full_ids, input_ids, valid.long(), position_ids, left.visuals, source, *left.places(source))
    prompt.cells, prompt.counted = left.cells, counted
    prompt.kept, prompt.total = left.counts
    prompt.full_lengths, prompt.sizes, prompt.starts = lengths, left.sizes, left.starts
    return prompt if before is None else _after(before, prompt)


def _require_more(ids: torch.Tensor, mask: torch.Tensor, before: Prompt) -> None:
    """Refuse a prompt that cannot have all earlier turns and something new."""
    rows, seen = before.full_ids.shape
    if len(ids) != rows or ids.shape[1] <= seen or mask.shape != ids.shape:
        raise PromptError(
            f"past_key_values holds {rows} x {seen} tokens of earlier turns, and input_ids {tuple(ids.shape)} do not go"
            " on from them: give all of them and the new turn, as in input_ids=torch.cat([tokens, question], 1), with"
            " attention_mask= for both"
        )


def _positions(
    kwargs: dict[str, Any],
    found: dict[str, list[Visual]],
    token_ids: dict[str, int],
    positions: Callable[[dict[str, Any]], torch.Tensor | None],
    before: Prompt | None,
) -> torch.Tensor | None:
    """Positions of the columns that are new, `[..., B, L]`."""
    if before is None or before.position_ids is None:
        return positions(kwargs)
    seen = before.full_ids.shape[1]
    ids = kwargs["input_ids"][:, seen:]
    given = {kind: sum(len(visual.features) for visual in visuals) for kind, visuals in found.items()}
    if any(count != int((ids == token_ids[kind]).sum()) for kind, count in given.items()):
        whole = positions(kwargs)
        return None if whole is None else whole[..., seen:]
    # what was given says nothing about the earlier turns: count on from their last token
    names = ("attention_mask", "mm_token_type_ids")
    later = {name: kwargs[name][:, seen:] for name in names if kwargs.get(name) is not None}
    new = positions({**kwargs, **later, "input_ids": ids})
    if new is not None:
        new[before.counted :] += before.position_ids[before.counted :, :, -1:] + 1
    return new


def _as_told(before: Prompt, mask: torch.Tensor) -> Prompt:
    """The cache's content with the mask of the last answer: rows that ended early are padded, and count no further."""
    if not before.answered:
        return before
    answer = slice(-before.answered, None)
    known, places = before.attention_mask.clone(), before.position_ids
    known[:, answer] = mask[:, answer]
    if places is not None:
        asked = places[..., : -before.answered]
        places = torch.cat([asked, _next(asked, known[:, answer])], -1)
    return replace(before, attention_mask=known, position_ids=places)


class _Left:
    """Collects the remaining tokens of each visual of a batch."""

    def __init__(self, ids: torch.Tensor, mask: torch.Tensor, first: int) -> None:
        self.ids, self.stays = ids, mask.clone()
        self.source = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        self.number, self.anchor = (torch.full_like(ids, NO_PLACE, dtype=torch.long) for _ in range(2))
        self.visuals: dict[str, list[Visual]] = {}
        self.cells: list[int] = []
        self.sizes: list[torch.Tensor] = []
        self.starts: list[tuple[int, int]] = []
        self.counts = (0, 0)
        self.first = first

    def add(self, kind: str, row: int, columns: torch.Tensor, visual: Visual, method: Compressor) -> None:
        frames = visual.grid[0]
        if visual.present is not None:  # the budget is that of the whole video
            method = replace(method, keep=None, tokens=method.count(frames * visual.cells))
        left = method.compress(visual.frames, visual.scores, visual.key)
        short, order = visual.shortened(left)
        sizes = torch.zeros(len(columns), device=columns.device)
        sizes[order[short.shows]] = left.size.float()
        self.sizes.append(sizes[visual.shows].view(visual.grid))
        self.starts.append((row, int(columns[0])))
        slots = columns[order.sort().values]
        self.stays[row, columns] = False
        self.stays[row, slots] = True
        self.source[row, slots] = columns[order]
        shown = columns[visual.shows]
        self.number[row, shown] = self.first + len(self.cells)
        self.anchor[row, shown] = torch.arange(len(shown), device=shown.device)
        self.cells.append(visual.cells)
        self.visuals.setdefault(kind, []).append(short)
        self.counts = (self.counts[0] + len(left.tokens), self.counts[1] + frames * visual.cells)

    def columns(self, pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids, the columns they come from, and which are no padding, each `[B, K]`, padded on the left."""
        lengths = self.stays.sum(1)
        width = int(lengths.max())
        valid = torch.arange(width, device=lengths.device) >= width - lengths[:, None]
        index = torch.zeros(valid.shape, dtype=torch.long, device=lengths.device)
        index[valid] = self.stays.nonzero()[:, 1]
        source = self.source.gather(1, index).masked_fill(~valid, NO_PLACE)
        return self.ids.gather(1, index).masked_fill(~valid, pad), source, valid

    def places(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of visuals and anchors of the columns that stay."""
        absent = source < 0
        index = source.clamp(min=0)
        number, anchor = (x.gather(1, index).masked_fill(absent, NO_PLACE) for x in (self.number, self.anchor))
        return number, anchor


def _placed(kind: str, visuals: list[Visual], ids: torch.Tensor, token_id: int, seen: int) -> Any:
    """Row, columns (counted from the first that is new) and visual of each that is new."""
    rows, columns = (ids == token_id).nonzero(as_tuple=True)
    new = columns >= seen
    features = sum(len(visual.features) for visual in visuals)
    if features == int(new.sum()):
        rows, columns = rows[new], columns[new]
    elif features != len(rows):
        raise PromptError(
            f"the prompt has {len(rows) or 'no'} {kind} placeholders (token {token_id}) for {features} {kind} tokens:"
            f" make input_ids and pixels in one call of the processor, with one <{kind}> in the text for each {kind}"
        )
    start = 0
    for visual in visuals:
        part = slice(start, start := start + len(visual.features))
        if len(set(rows[part].tolist())) > 1:
            raise PromptError(f"the placeholders of one {kind} lie in two prompts of the batch: their number is wrong")
        if columns[part][0] >= seen:
            yield int(rows[part][0]), columns[part] - seen, visual


def _after(before: Prompt, prompt: Prompt) -> Prompt:
    """The prompt, preceded by the columns that an earlier call has seen."""
    position_ids = prompt.position_ids
    if position_ids is not None and before.position_ids is not None:
        if before.counted:
            position_ids[0] += before.position_ids[0, :, -1:] + 1
        position_ids = torch.cat([before.position_ids, position_ids], -1)
    return replace(
        prompt,
        input_ids=_extended(before.input_ids, prompt.input_ids),
        attention_mask=_extended(before.attention_mask, prompt.attention_mask),
        position_ids=position_ids,
        source=_extended(before.source, prompt.source + (prompt.source >= 0) * before.full_ids.shape[1]),
        number=_extended(before.number, prompt.number),
        anchor=_extended(before.anchor, prompt.anchor),
        cells=before.cells + prompt.cells,
        cached=before.input_ids.shape[1],
    )


def _next(position_ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The positions after the last ones of columns `[B, N]`, as `generate` counts the real ones on, `[..., B, N]`."""
    return position_ids[..., -1:] + real.cumsum(1).to(position_ids.device)


def _extended(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.cat([one, other.to(one)], 1)
