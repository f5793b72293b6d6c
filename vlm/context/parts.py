"""The parts of a prompt that can stand elsewhere: pages that the call tells, and each picture or clip."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from mmaccel.cache.model_hash import content_hash, prefix_hashes
from mmaccel.errors import SettingError, shown

from .prompt import COLUMNS, content_names

KINDS = ("image", "video")


@dataclass(frozen=True)
class Part:
    """Tokens of a prompt that are encoded alone.

    Attributes
    ----------
    start, stop
        The first token, and the one after the last.
    content
        Arguments of the model that hold its picture or clip; empty for a text.
    """

    start: int
    stop: int
    content: dict[str, Any] = field(default_factory=dict)

    def alone(self, kwargs: dict[str, Any], opening: torch.Tensor) -> dict[str, Any]:
        """Arguments of the model for this part behind a few words `[1, K]`."""
        call = {}
        for name in ("input_ids", *COLUMNS):
            if kwargs.get(name) is not None:
                own = kwargs[name][:, self.start : self.stop]
                first = opening if name == "input_ids" else torch.zeros_like(opening)
                call[name] = torch.cat([first.to(own), own], 1)
        return {**call, "attention_mask": torch.ones_like(call["input_ids"]), **self.content}

    def hash(self, kwargs: dict[str, Any], opening: torch.Tensor) -> str:
        """The hash of what it contains, and of the words before it."""
        call = self.alone(kwargs, opening)
        start = content_hash([("opening", opening.shape[1]), *sorted(self.content.items())])
        columns = torch.stack([call[name][0] for name in ("input_ids", *COLUMNS) if name in call])
        return next(iter(prefix_hashes(start, columns, [columns.shape[1]])))


def spans_of(contexts: Any, kwargs: dict[str, Any]) -> list[tuple[int, int]]:
    """The spans of ``generate(..., contexts=[(start, stop), ...])``, checked.

    Raises
    ------
    SettingError
        If they are not spans of tokens of the prompt, in order and apart.
    """
    if contexts is None:
        return []
    ids = kwargs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        raise SettingError("contexts= are spans of tokens: give input_ids= too, by generate(**inputs, contexts=...)")
    try:
        spans = [(int(start), int(stop)) for start, stop in contexts]
    except (TypeError, ValueError):
        raise SettingError(
            f"contexts={shown(contexts)}: give the first token of each part and the one after its last,"
            " [(start, stop), ...]; vlm.mark_contexts finds them"
        ) from None
    for start, stop in spans:
        if not 0 <= start < stop <= ids.shape[1]:
            raise SettingError(f"contexts: ({start}, {stop}) is no span of a prompt of {ids.shape[1]} tokens")
    _require_apart(spans)
    return spans


def _require_apart(spans: Sequence[tuple[int, int]]) -> None:
    for one, other in pairwise(spans):
        if other[0] < one[1]:
            raise SettingError(f"contexts: {other} begins before {one} ends; give them in order, without overlaps")


def parts_of(adapter: Any, kwargs: dict[str, Any], spans: list[tuple[int, int]]) -> tuple[list[Part], str | None]:
    """The parts of a call, in order, and why its pictures are not among them, if so.

    Raises
    ------
    SettingError
        If a span cuts a picture or a clip.
    """
    parts = [Part(*span) for span in spans]
    content = content_names(adapter, kwargs)
    if not content:
        return parts, None
    shown_parts = _pictures(adapter, kwargs, content)
    if shown_parts is None:
        return [], "its pictures and clips cannot be told apart"
    found = sorted([*parts, *shown_parts], key=lambda part: part.start)
    _require_apart([(part.start, part.stop) for part in found])
    return found, None


def _pictures(adapter: Any, kwargs: dict[str, Any], content: Sequence[str]) -> list[Part] | None:
    """A part for each run of placeholders; None unless each is of one picture or clip of its own."""
    if not hasattr(adapter, "token_id") or getattr(adapter.target.config, "visual_indicator_token_ids", None):
        return None  # marks around pictures have embeddings that only pictures bring
    runs = {kind: _runs(kwargs["input_ids"][0] == adapter.token_id(kind)) for kind in KINDS}
    runs = {kind: found for kind, found in runs.items() if found}
    rows: dict[str, list[dict[str, Any]]] = {kind: [{} for _ in found] for kind, found in runs.items()}
    for name in content:
        value = kwargs[name]
        owners = [*runs] if not isinstance(value, torch.Tensor) else _owners(adapter, name, [*runs])
        for kind in owners:
            pieces = _pieces(value, kwargs.get(f"{kind}_grid_thw"), len(runs[kind]))
            if pieces is None:
                return None
            for row, piece in zip(rows[kind], pieces, strict=True):
                row[name] = piece
        if not owners:
            return None
    return [Part(*run, row) for kind in runs for run, row in zip(runs[kind], rows[kind], strict=True)]


def _runs(places: torch.Tensor) -> list[tuple[int, int]]:
    """First place of each run, and the one after its last."""
    edges = torch.nn.functional.pad(places.int(), (1, 1)).diff()
    firsts, lasts = (edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist()
    return list(zip(firsts, lasts, strict=True))


def _owners(adapter: Any, name: str, kinds: list[str]) -> list[str]:
    """The kind of pictures that an argument describes; none if that is unclear."""
    calls = {kind: getattr(adapter.model, f"get_{kind}_features", None) for kind in kinds}
    takes = [kind for kind, call in calls.items() if call is not None and name in inspect.signature(call).parameters]
    found = takes or kinds
    return found if len(found) == 1 else []


def _pieces(value: Any, grids: Any, count: int) -> list[Any] | None:
    """What of an argument belongs to each of several pictures; None if that is unclear."""
    if not isinstance(value, torch.Tensor):
        return [value] * count
    if len(value) == count:
        return list(value.split(1))
    if isinstance(grids, torch.Tensor) and len(grids) == count and int(grids.prod(-1).sum()) == len(value):
        return list(value.split(grids.prod(-1).tolist()))
    return None
