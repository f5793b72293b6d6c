"""Joined contexts: pages, pictures and clips are encoded once, and take any place in later prompts; lossy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.cache import ContextStore
from mmaccel.cache.context_store import State
from mmaccel.cache.model_hash import model_hash
from mmaccel.decoding.setting import give_cache, setting, tokens_made
from mmaccel.method import Advice, is_count
from mmaccel.registry import register
from mmaccel.session import Session

from ..decoder.generation import copies
from .joining import Joining
from .parts import Part, parts_of, spans_of
from .prompt import ContextPrompt, unfit_for_context
from .stored_context import StoredContext, write
from .turning import why_unturned

EXAMPLE = """import mmaccel
from mmaccel import vlm
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
tokenizer = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
pages = [open(name).read() for name in ("second.txt", "first.txt")]
prompt = "\\n\\n".join(["Answer from these pages.", *pages, "Question: What do they agree on?\\nAnswer:"])
inputs = vlm.mark_contexts(tokenizer, prompt, pages)
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, max_new_tokens=64)
    print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :]))
    print(fast.report.details["context"])"""


@register("vlm")
@dataclass(frozen=True)
class JoinedContext(StoredContext):
    """Keep pages, pictures and clips on disk, each encoded alone, and turn them to any place in a later prompt; lossy.

    KVLink (Yang et al., 2025) turns the keys of a stored page by the difference of positions, EPIC (Hu et al., 2024)
    computes the first tokens of each page anew. ``generate(**inputs, contexts=[(start, stop), ...])`` says where pages
    are, as :func:`mmaccel.vlm.mark_contexts` finds them; each picture and clip is a part without being named. A call
    without parts runs as with :class:`StoredContext`.

    Parameters
    ----------
    folder
        As for :class:`StoredContext`; both may use one folder.
    gigabytes
        Most that the folder holds, as for :class:`StoredContext`.
    least
        Fewest tokens of a page that is kept, default 64; shorter ones are computed.
    recomputed
        First tokens of each page that are computed anew where it stands, default 16; EPIC has up to 32. Pictures and
        clips are taken as they are.

    Notes
    -----
    Lossy: a part has not seen what stands before it. Exact are a part at the beginning, also behind the model's first
    token, and pages of at most `recomputed` tokens. An answer is the same whether parts were stored or are encoded
    now. The model needs one rotary embedding and layers without windows. Pictures that cannot be told apart are left to
    the exact reuse of :class:`StoredContext`, with a line in the report.

    Raises
    ------
    SettingError
        If a setting is out of range, or `contexts` are not spans of tokens in order.

    Examples
    --------
    >>> print(JoinedContext(recomputed=32))
    vlm.JoinedContext(recomputed=32)
    """

    recomputed: int = 16

    paper: ClassVar[str] = "EPIC: Efficient Position-Independent Caching for Serving Large Language Models, 2024"
    advice: ClassVar[Advice] = Advice(
        "The same pages or clips in many prompts, in another order or behind another system prompt.",
        "Disk, and that pages do not see each other: what one says of another, or several say the like of, is found"
        " less often.",
        example=EXAMPLE,
    )
    lossless: ClassVar[bool] = False
    alike: ClassVar[str] = "hold its parts"
    call_arguments: ClassVar[frozenset[str]] = frozenset({"contexts"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.recomputed, 0), "recomputed", "a whole number of at least 0")

    def why_unfit(self, adapter: Any) -> str | None:
        name = type(adapter.target).__name__
        return super().why_unfit(adapter) or why_unturned(adapter.decoder, adapter.text_config, name)

    def _generate(
        self, session: Session, store: ContextStore | None, original: Callable[..., Any], kwargs: dict[str, Any]
    ) -> Any:
        """Replaces `generate` of the model."""
        if kwargs.get("inputs") is not None:
            kwargs["input_ids"] = kwargs.pop("inputs")
        spans = spans_of(kwargs.pop("contexts", None), kwargs)
        if store is None or unfit_for_context(session.target, kwargs) is not None:
            return super()._generate(session, store, original, kwargs)
        joining, parts, why = self._parts(session, kwargs, spans)
        if not parts:
            result = super()._generate(session, store, original, kwargs)
            session.report.warnings.extend([] if why is None else [f"{self.name} joined nothing: {why}"])
            return result
        return self._joined(session, store, joining, parts, original, kwargs)

    def _parts(
        self, session: Session, kwargs: dict[str, Any], spans: list[tuple[int, int]]
    ) -> tuple[Joining, list[Part], str | None]:
        """The cache of a prompt to be, the parts that are joined, and why none are."""
        joining = Joining(session.adapter, kwargs)
        found, why = parts_of(session.adapter, joining.kwargs, spans)
        shortest = max(self.least, self.recomputed + 1)
        found = [part for part in found if part.content or part.stop - part.start >= shortest]
        if found and found[-1].content and found[-1].stop == kwargs["input_ids"].shape[1]:
            return joining, [], "the prompt ends with a picture"
        return joining, found, why

    def _joined(
        self,
        session: Session,
        store: ContextStore,
        joining: Joining,
        parts: list[Part],
        original: Callable[..., Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """An answer to a prompt whose parts are stored, or are from now on."""
        prompt, model = ContextPrompt.of(session.adapter, kwargs), model_hash(session.target)
        seen = written = 0
        for part in parts:
            states, known, new = self._states(store, model, session, joining, part)
            first = 0 if part.content or joining.is_exact(part) else self.recomputed
            joining.compute(part.start + first)
            before, stop = joining.cache.get_seq_length(), min(part.stop, prompt.length - 1)
            joining.place(part, states, stop)
            seen, written = seen + (stop - before) * known, written + new
        prompt.go_on(kwargs, session.adapter)
        joining.cache.batch_repeat_interleave(copies(session.target, kwargs))
        give_cache(session.target, kwargs, joining.cache)
        result = original(**kwargs)
        rows = setting(session.target, kwargs, "num_return_sequences") or 1
        self._fill(session.report, tokens_made(result, kwargs), rows, prompt.length, seen, written)
        session.report.details["context"]["parts"] = len(parts)
        return result

    def _states(
        self, store: ContextStore, model: str, session: Session, joining: Joining, part: Part
    ) -> tuple[list[State], bool, int]:
        """Keys and values of a part alone, whether they come from the store, and the bytes that are new there."""
        key, tokens = joining.hash(part), part.stop - part.start
        found = store.find(model, {key: tokens})
        states = None if found is None else store.read(found[0], joining.kwargs["input_ids"].device)
        if states is not None:
            return states, True, 0
        states = joining.encode(part)
        return states, False, write(store, model, session, {key: tokens}, states)
