"""The parts of a prompt that can stand elsewhere: pages that the call tells, and each picture or clip."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import index
from typing import Any

import torch

from mmaccel.cache.model_hash import content_hash, prefix_hashes
from mmaccel.decoding.drafters.placeholders import placeholders
from mmaccel.errors import SettingError, shown

from ..decoder.columns import COLUMNS
from .prompt import content_names, is_setting, settings_of

KINDS = ("image", "video")
# Seconds between frames, of which only the rule of positions is told: no call for features takes them.
TIMES = ("second_per_grid_ts", "second_per_grids", "video_second_per_grid")
IN_PROMPTS = "batch_num_images"  # of each prompt: LLaVA-OneVision cuts up pictures that stand alone there


@dataclass(frozen=True)
class Part:
    """Tokens of a prompt that are encoded alone.

    Attributes
    ----------
    start, stop
        The first token, and the one after the last.
    content
        Arguments of the model that hold its picture or clip, and settings of the call; empty for a text.
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

    def hash(self, kwargs: dict[str, Any], opening: torch.Tensor, places: torch.Tensor | None = None) -> str:
        """The hash of what it contains, of the words before it, and of positions that do not count up."""
        call = self.alone(kwargs, opening)
        start = content_hash([("opening", opening.shape[1]), ("places", places), *sorted(self.content.items())])
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
        spans = [(index(start), index(stop)) for start, stop in contexts]
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
    """A part for each picture and clip; None where it is unclear what belongs to which."""
    if not hasattr(adapter, "token_id") or getattr(adapter.target.config, "visual_indicator_token_ids", None):
        return None  # marks around pictures have embeddings that only pictures bring
    ids, tokens = kwargs["input_ids"][0], {kind: adapter.token_id(kind) for kind in KINDS}
    if (placeholders(adapter.target.config) - {*tokens.values()}) & {*ids.tolist()}:
        return None  # sound is no part, and words alone would be read in its place
    runs = {kind: _runs(ids == token) for kind, token in tokens.items()}
    owned: dict[str, list[str]] = {kind: [*settings_of(adapter, kwargs)] for kind, found in runs.items() if found}
    for name in content:
        owners = _owners(adapter, name, kwargs[name], [*owned])
        if not owners:
            return None
        for kind in owners:
            owned[kind].append(name)
    parts = [_of_kind(runs[kind], kind, {name: kwargs[name] for name in names}) for kind, names in owned.items()]
    return None if None in parts else [part for found in parts if found is not None for part in found]


def _of_kind(runs: list[tuple[int, int]], kind: str, given: dict[str, Any]) -> list[Part] | None:
    """The parts of one kind, from the runs of its placeholders and the arguments that describe it."""
    spans = _divided(runs, _weights(runs, given.get(f"{kind}_grid_thw"), given))
    if spans is None:
        return None
    if isinstance(in_prompts := given.get(IN_PROMPTS), torch.Tensor):
        # of each picture's own prompt; among three it is what it is beside one other
        given = {**given, IN_PROMPTS: in_prompts.repeat_interleave(in_prompts).clamp(max=2)}
    pieces = {name: _pieces(value, given.get(f"{kind}_grid_thw"), len(spans)) for name, value in given.items()}
    if None in pieces.values():
        return None
    return [Part(*span, {name: found[i] for name, found in pieces.items() if found}) for i, span in enumerate(spans)]


def _weights(runs: list[tuple[int, int]], grids: Any, given: dict[str, Any]) -> list[int]:
    """How many tokens each picture has, in proportion."""
    if isinstance(grids, torch.Tensor):
        return list(grids.prod(-1).tolist())
    stacked = next((value for name, value in given.items() if name.startswith("pixel_values")), None)
    sizes, in_prompts = given.get("image_sizes"), given.get(IN_PROMPTS)
    whole = in_prompts is not None and bool((torch.as_tensor(in_prompts) > 1).all())
    alike = whole or sizes is None or len(torch.as_tensor(sizes).unique(dim=0)) == 1
    if isinstance(stacked, torch.Tensor) and stacked.ndim == 5 and alike:
        return [1] * len(stacked)  # all of one shape
    return [stop - start for start, stop in runs]  # rows may be tiles: a run is a picture


def _divided(runs: list[tuple[int, int]], weights: list[int]) -> list[tuple[int, int]] | None:
    """The spans of pictures that stand in runs, some without a word between; None if they do not fill these.

    Examples
    --------
    >>> _divided([(2, 8), (9, 12)], [1, 1, 1]), _divided([(2, 8), (9, 12)], [1, 1])
    ([(2, 5), (5, 8), (9, 12)], None)
    """
    total, spans = sum(stop - start for start, stop in runs), []
    if any(weight * total % sum(weights) for weight in weights):
        return None
    waiting = [weight * total // sum(weights) for weight in weights]
    for start, stop in runs:
        while start < stop:
            if not waiting or waiting[0] > stop - start:
                return None
            spans.append((start, start := start + waiting.pop(0)))
    return spans


def _runs(places: torch.Tensor) -> list[tuple[int, int]]:
    """First place of each run, and the one after its last."""
    edges = torch.nn.functional.pad(places.int(), (1, 1)).diff()
    firsts, lasts = (edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist()
    return list(zip(firsts, lasts, strict=True))


def _owners(adapter: Any, name: str, value: Any, kinds: list[str]) -> list[str]:
    """The kinds of pictures that an argument describes; none if that is unclear."""
    if isinstance(value, Mapping):
        return []  # such as features in place of pixels
    calls = {kind: getattr(adapter.model, f"get_{kind}_features", None) for kind in kinds}
    takes = [kind for kind, call in calls.items() if call is not None and name in inspect.signature(call).parameters]
    found = takes or [kind for kind in kinds if kind == "video" or name not in TIMES]
    return found if len(found) == 1 else []


def _pieces(value: Any, grids: Any, count: int) -> list[Any] | None:
    """What of an argument belongs to each of several pictures; None if that is unclear."""
    if is_setting(value):
        return [value] * count
    if len(value) == count:
        return [value[number : number + 1] for number in range(count)]
    if isinstance(grids, torch.Tensor) and len(grids) == count and int(grids.prod(-1).sum()) == len(value):
        return list(value.split(grids.prod(-1).tolist()))
    return None
