"""Stored context: what many prompts begin with is computed once, and read from disk from then on; exact."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import DynamicCache

from mmaccel import private
from mmaccel.cache import ContextStore
from mmaccel.cache.model_hash import model_hash
from mmaccel.decoding.setting import give_cache, setting, tokens_made
from mmaccel.errors import SettingError
from mmaccel.files.user_cache import cache_folder
from mmaccel.method import Advice, Method, is_count, is_number
from mmaccel.patching import wrap_generate
from mmaccel.registry import register
from mmaccel.report import Report
from mmaccel.session import Session

from ..decoder.generation import copies
from .prompt import ContextPrompt, unfit_for_context, why_unstorable

EXAMPLE = """import mmaccel
from mmaccel import vlm, zoo

model, processor = zoo.load("tiny-onevision")
asked = zoo.questions("tiny-onevision", 1)[0]
with mmaccel.accelerate(model, {method}) as fast:
    for question in (asked.question, "what moves up?"):
        inputs = processor(videos=[asked.frames], text=question, return_tensors="pt")
        tokens = fast.generate(**inputs, max_new_tokens=8)
        print(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
        print(fast.report.details["context"])"""


GROWN = 8  # a prompt is written again once it has grown by this part of what is stored of it


@register("vlm")
@dataclass(frozen=True)
class StoredContext(Method[Session]):
    """Keep the keys and values of prompts on disk, and begin with them where a later prompt begins alike; exact.

    Prefix caching as in vLLM (Kwon et al., 2023), but from one process to the next, and with pictures and videos: a
    second question about a clip or a long text computes the question alone, and a vision tower does not run again.

    Parameters
    ----------
    folder
        Where prompts are kept; None (default) for `contexts` in the user's cache folder. What is kept there tells what
        the prompts were.
    gigabytes
        Most gigabytes of the folder, default 8; 0 keeps nothing. What was not used for longest is deleted first.
    least
        Fewest new tokens for which a prompt is kept, and of text alone fewest that are read back, default 64: all
        prompts of one chat template share a few. All of a prompt is written, so that one that begins with a stored one
        is kept only where it is longer by an eighth, too.

    Notes
    -----
    Exact: keys of a prefix do not depend on what follows. A prompt with pictures or videos is recognised if all of them
    are the same; ask after them. Entries of another model, of other weights or of another version are not used; a
    broken entry is deleted, with a line in the report. One prompt at a time: batches run plainly. Layers with a window,
    as most of Gemma 3's, are held whole until the call ends, so that each step of a long prompt takes longer.

    Raises
    ------
    SettingError
        If a setting is out of range.

    Examples
    --------
    >>> print(StoredContext(gigabytes=2))
    vlm.StoredContext(gigabytes=2)
    """

    folder: str | PathLike[str] | None = None
    gigabytes: float = 8
    least: int = 64

    paper: ClassVar[str] = "Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023"
    advice: ClassVar[Advice] = Advice(
        "Several questions about a long text, a clip or pictures, also on another day.",
        "Disk, for the keys and values of every token. The first question pays for writing them.",
        example=EXAMPLE,
    )
    lossless: ClassVar[bool] = True
    role: ClassVar[str] = "stored context"
    nesting: ClassVar[int] = -1
    # these would store keys and values that are not the model's own
    excludes: ClassVar[frozenset[str]] = frozenset(
        {"decoding cache", "prompt tokens", "visual tokens", "vlm.SparsePrefill"}
    )
    neutral: ClassVar[dict[str, Any]] = {"gigabytes": 0}
    engaging: ClassVar[dict[str, Any]] = {"least": 16}
    learns: ClassVar[bool] = True
    alike: ClassVar[str] = "begin alike"

    def __post_init__(self) -> None:
        self._require(self.folder is None or isinstance(self.folder, str), "folder", "a path or None")
        self._require(is_number(self.gigabytes, 0), "gigabytes", "a number of at least 0")
        self._require(is_count(self.least), "least", "a whole number of at least 1")

    @property
    def uses_files(self) -> bool:
        """Always: the contexts are kept in files."""
        return True

    @property
    def path(self) -> Path:
        """The folder."""
        return cache_folder() / "contexts" if self.folder is None else Path(self.folder).expanduser()

    def why_unfit(self, adapter: Any) -> str | None:
        """Why it does not work on a model; None if it does."""
        name = type(adapter.target).__name__
        if private.is_split(adapter.target):
            return f"{name} is split over processes, each of which may find another part of a prompt stored"
        return why_unstorable(adapter.text_config, name)

    def attach(self, session: Session, stack: ExitStack) -> None:
        store = ContextStore(self.path, self.gigabytes) if self.gigabytes else None
        wrap_generate(stack, session, functools.partial(self._told, session, store))

    def _told(
        self, session: Session, store: ContextStore | None, original: Callable[..., Any], kwargs: dict[str, Any]
    ) -> Any:
        """An answer, with the troubles of the store in the report of this call, also where it broke off."""
        try:
            return self._generate(session, store, original, kwargs)
        finally:
            if store is not None:
                session.report.warnings[:0] = dict.fromkeys(store.troubles)  # which each part may meet
                store.troubles.clear()

    def _generate(
        self, session: Session, store: ContextStore | None, original: Callable[..., Any], kwargs: dict[str, Any]
    ) -> Any:
        """Replaces `generate` of the model."""
        if kwargs.get("inputs") is not None:
            kwargs["input_ids"] = kwargs.pop("inputs")
        if kwargs.get("contexts") is not None:
            raise SettingError(f"{self.name} takes no contexts; vlm.JoinedContext does")
        reason = f"gigabytes={self.gigabytes} keeps nothing" if store is None else None
        reason = reason or unfit_for_context(session.target, kwargs)
        if store is None or reason is not None:
            result = original(**kwargs)
            session.report.tokens = tokens_made(result, kwargs)
            session.report.warnings.append(f"{self.name} ran plainly: {reason}")
            return result
        prompt = ContextPrompt.of(session.adapter, kwargs)
        model = model_hash(session.target)
        cache, seen, entry = self._begun(store, model, prompt, session.target.device)
        if seen:
            prompt.go_on(kwargs, session.adapter)
            cache.batch_repeat_interleave(copies(session.target, kwargs))
        give_cache(session.target, kwargs, cache)
        result = original(**kwargs)
        written = 0
        is_new = prompt.stops and (entry is None or not entry.stops.keys() >= prompt.stops.keys())
        if is_new and prompt.length - seen >= max(self.least, seen // GROWN):
            written = write(store, model, session, prompt.stops, _states(cache, max(prompt.stops.values())))
            if written and entry is not None and seen == entry.tokens:
                store.remove(entry)  # the new one holds all of it
        rows = setting(session.target, kwargs, "num_return_sequences") or 1
        self._fill(session.report, tokens_made(result, kwargs), rows, prompt.length, seen, written)
        return result

    def _begun(self, store: ContextStore, model: str, prompt: ContextPrompt, device: Any) -> tuple[Any, int, Any]:
        """A cache with what is stored of a prompt, how many tokens that is, and their entry."""
        cache, known = DynamicCache(), prompt.reusable(self.least)
        found = store.find(model, known) if known else None
        states = None if found is None else store.read(found[0], tokens=found[1])
        if found is None or states is None:
            return cache, 0, None
        entry, seen = found
        for layer, (key, value) in enumerate(states):
            cache.update(key[None].to(device), value[None].to(device), layer)  # no other is there twice
        return cache, seen, entry

    def _fill(self, report: Report, tokens: int, rows: int, length: int, seen: int, written: int) -> None:
        """Say what came from the store; a pass over the rest of a prompt counts as that part of a pass."""
        report.tokens, report.engaged = tokens, report.engaged or seen > 0
        if not report.plain_forwards:
            report.forwards = report.plain_forwards = tokens // rows
        report.forwards -= seen / length
        report.details["context"] = {"prompt": length, "from_store": seen, "bytes_written": written}
        if written and not seen:
            told = f"nothing of this prompt was stored yet; it is now, for later ones that {self.alike}"
            report.warnings.append(told)
        elif not seen and length < self.least:
            report.warnings.append(f"{self.name} kept nothing: the prompt has fewer than least={self.least} tokens")


def write(
    store: ContextStore, model: str, session: Session, stops: dict[str, int], states: list[tuple[Any, Any]]
) -> int:
    """The bytes that are new in the store; none where a hook changed within the call, as one that records does."""
    if model_hash(session.target) == model:
        return store.write(model, stops, states)
    store.troubles.append("nothing was stored: hooks on the model changed within the call")
    return 0


def _states(cache: Any, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of the first tokens, `[heads, tokens, dim]` for each layer."""
    return [(layer.keys[0, :, :count], layer.values[0, :, :count]) for layer in cache.layers]
