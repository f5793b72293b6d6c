"""Texts that grow by drafts within `generate`: target of the shared loop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn import functional

from mmaccel import private
from mmaccel.cache.argument import cache_of, own_cache
from mmaccel.masks import additive

from .generated_text import Drafts, GeneratedText, Verdicts, aligned, padding_beside, positions_of, texts_of
from .matching import Draft, Likely, Verdict, likeliest_of, match
from .passes.hidden_states import HiddenStates
from .passes.pass_attention import PassAttention
from .passes.rollback import Rollback
from .passes.slots import Slots
from .setting import asks_router_logits, keeps_cache, pass_device
from .step_mode import StepMode

# Committed tokens of every text that are read again with each draft, at most, before they are read without one: where
# layers have a state, only such a pass is sure to be kept.
UNREAD = 6


class GeneratedTexts:
    """The texts of a batch: target of the loop.

    Processors and stopping criteria see each committed token of a text once and in order, as in a loop of single steps.

    Parameters
    ----------
    model, ids, processors, criteria, config, kwargs
        As `generate` gives them to its loop; `ids [B, N]`.
    spreads
        Whether rows have places of their own, as trees need; else several texts are read in step.
    likely
        How many of the likeliest tokens after each node a verdict tells.
    streamer
        Is given the tokens of the text, if there is one text.
    layers
        Whose inputs drafters read.

    Attributes
    ----------
    texts
        One per row.
    slots
        Places of the rows in the cache, once the prompt is read; None where texts are read in step, as the model does.
    past
        The cache of such texts, once the prompt is read.
    more
        Passes beside those of the loop, for the cache alone.
    hidden
        What drafters read of the layers; None where they read nothing.
    """

    def __init__(
        self,
        model: Any,
        ids: torch.Tensor,
        processors: Any,
        criteria: Any,
        config: Any,
        kwargs: dict[str, Any],
        spreads: bool = False,
        likely: int = 0,
        streamer: Any = None,
        layers: tuple[int, ...] = (),
    ) -> None:
        self.model, self.kwargs, self.spreads, self.likely = model, kwargs, spreads, likely
        self.device = pass_device(model, ids)
        self.start = ids.shape[1]
        self.texts = texts_of(ids, processors, criteria, config, streamer)
        self.is_decoder, self.pad = not model.config.is_encoder_decoder, private.pad_token(config)
        self.first, self._fed, self._end = True, 0, 0  # tokens that the last pass was given, and the place behind them
        self._open: int | None = None  # tokens that all texts had when a pass ran that nothing was committed of yet
        self.slots: Slots | None = None
        self.past: Rollback | None = None
        self._stack, self.more = ExitStack(), 0
        self._steps = StepMode(model, self._stack)
        self.hidden = HiddenStates(model, layers, len(ids), self._stack) if layers else None
        self._attention: PassAttention | None = None  # once the prompt is read
        self._padding = [0] * len(ids)  # tokens of texts that ended which the pass read, for a cache that is kept
        self._next = ids.new_zeros(1)  # position of the last token of each row
        self.cache, embeds = own_cache(cache_of(kwargs)), kwargs.get("inputs_embeds")
        self._keeps = keeps_cache(config, cache_of(kwargs))
        length = self.start if embeds is None else max(self.start, embeds.shape[1])
        positions = positions_of(model)
        for text in self.texts:
            text.unread = max(0, length - 1 - self.cache.get_seq_length())
            text.longest = positions - length + self.start
        prefix = "" if self.is_decoder else "decoder_"
        self._mask, self._places = f"{prefix}attention_mask", f"{prefix}position_ids"
        self._more: dict[str, Any] = {}  # arguments of all passes over several texts, but for these two
        self._takes_bool = True  # as a mask
        self._routes = asks_router_logits(model, kwargs)

    @property
    def room(self) -> int:
        """Tokens that the shortest text may still get."""
        if not self._growing():
            return 0
        if self.first:  # the prompt may hold pictures: what prepares it knows nothing of drafts
            waits = self.is_decoder or self.spreads or len(self.texts) > 1
        else:
            waits = min(text.unread for text in self._growing()) >= UNREAD
        if waits:
            return 1
        return max(text.room for text in self._growing())

    @property
    def _longest(self) -> int:
        return max(text.ids.shape[1] for text in self.texts)

    def _growing(self) -> list[GeneratedText]:
        return [text for text in self.texts if not text.finished]

    def forward(self, drafts: Drafts) -> torch.Tensor:
        """Logits `[B, K + 1, V]` after the texts, and after each node of the drafts."""
        was_prompt = self.first
        if self.past is not None:
            self.past.mark(drafts.size > 0)
        inputs = self._together(drafts) if self.slots is None else self._several(drafts.rows)
        self._steps.follow(drafts.width == 1 and not was_prompt)
        logits: torch.Tensor = self.model(**inputs, return_dict=True).logits
        self._open = min(text.ids.shape[1] for text in self._growing())
        if self.hidden is not None:
            self.hidden.took()
        if was_prompt:
            self._begin(inputs)
        self._fed = 0 if was_prompt else drafts.size + 1
        if self.past is None:
            return logits[:, -drafts.size - 1 :]
        return aligned(logits, self.texts, self._end, drafts.size + 1)

    def _together(self, drafts: Drafts) -> dict[str, Any]:
        """Inputs of prompts, or of texts that are read in step, each with a chain behind it."""
        if self.past is None:
            held, self._end = self.cache.get_seq_length(), self.start + drafts.size
        else:
            held, self._end = self.past.held, self.past.held + drafts.width
        fed = torch.cat(
            [
                self._cut(torch.cat([text.ids, text.ids.new_tensor([draft.tokens])], 1), self._end)
                for text, draft in zip(self.texts, drafts.rows, strict=True)
            ]
        )
        embedded = self.first and self.kwargs.get("inputs_embeds") is not None
        first = min(text.ids.shape[1] for text in self._growing()) - 1  # token after which logits are asked for
        kwargs = private.kwargs_after(self.model, self.kwargs, self._end - self.start)
        return self._prepared(fed, None if embedded else self._end - held, self._end - first, kwargs)

    def _cut(self, ids: torch.Tensor, end: int) -> torch.Tensor:
        """A text up to a place, as that behind a pass; what a shorter one is padded with no other token sees."""
        return functional.pad(ids, (0, end - ids.shape[1]), value=self.pad)

    def _several(self, drafts: Sequence[Draft]) -> dict[str, Any]:
        """Inputs of several texts, or of a tree."""
        assert self.slots is not None and self._attention is not None
        if self._keeps:
            drafts, self._padding = padding_beside(self.texts, drafts, self.pad)
        size = max(draft.size for draft in drafts)
        fed = torch.cat([text.ids[:, -1:] for text in self.texts])
        nodes = [[*draft.tokens, *[0] * (size - draft.size)] for draft in drafts]
        fed = torch.cat([fed, fed.new_tensor(nodes).view(len(nodes), size)], 1)
        rows = [[0, *draft.depths, *[0] * (size - draft.size)] for draft in drafts]
        depths = torch.tensor(rows, device=self.device)
        seen = self.slots.mask(drafts, depths)
        mask = seen if self._takes_bool else additive(seen, self.model.dtype)
        places = self._next + depths
        self._attention.expect(mask, places, self.slots)
        kwargs = {**self._more, self._mask: mask, self._places: places}
        for name in ("token_type_ids", "mm_token_type_ids"):  # of the text, all as of its next token
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name][:, -1:].expand(-1, fed.shape[1])
        return self._prepared(fed, fed.shape[1], fed.shape[1], kwargs)

    def _prepared(self, fed: torch.Tensor, count: int | None, keep: int, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Inputs of a pass over the last `count` of the tokens, with logits of the last `keep`."""
        found: dict[str, Any] = self.model.prepare_inputs_for_generation(
            fed, next_sequence_length=count, is_first_iteration=self.first, **kwargs
        )
        if "logits_to_keep" in found:  # some models set it themselves
            found["logits_to_keep"] = keep
        if self._routes:  # which `generate` does not return, and whose loss reads masks of another shape
            found["output_router_logits"] = False
        return found

    def _begin(self, inputs: dict[str, Any]) -> None:
        """The prompt is read: from here on drafts may have to be taken back, and rows may have places of their own."""
        self.first = False
        self._attention = PassAttention(self.model, self._stack)
        if not self.spreads:
            self.past = Rollback(self.cache)
            return
        held, mask, places = self.cache.get_seq_length(), self.kwargs.get(self._mask), inputs.get(self._places)
        seen = torch.ones(len(self.texts), held) if mask is None else mask[:, :held]
        config = self.model.config.get_text_config(decoder=True)
        self._takes_bool = private.attention_name(config) == "sdpa"
        self._more = private.kwargs_after(self.model, self.kwargs, 1)
        self.slots = Slots(self.cache, config, seen.to(self.device))
        last = torch.full((len(self.texts), 1), held - 1) if places is None else places[..., -1:]
        self._next = last.to(self.device) + 1
        for text in self.texts:
            text.unread = 0

    def judge(self, output: torch.Tensor, drafts: Drafts) -> Verdicts:
        """Follow each text through its draft."""
        likely = likeliest_of(output, self.likely)
        return tuple(
            None if text.finished or self._waits(text) else self._judged(text, rows, draft, likely[row])
            for row, (text, rows, draft) in enumerate(zip(self.texts, output, drafts.rows, strict=True))
        )

    def _waits(self, text: GeneratedText) -> bool:
        """Whether a text is ahead of the pass, which said nothing new of it."""
        return self.slots is None and text.ids.shape[1] > self._end

    def _judged(self, text: GeneratedText, rows: torch.Tensor, draft: Draft, likely: Sequence[Likely]) -> Verdict:
        found = match(draft, lambda node: text.choose(rows[node + 1][None]))
        return Verdict(found.path, found.tokens, likely[: draft.size + 1])

    def commit(self, verdicts: Verdicts) -> list[int]:
        """Take the rejected drafts back from the cache."""
        self._open = None
        if self.hidden is not None:
            self.hidden.keep(self.texts, verdicts, None if self.slots is not None and self._fed else self._end)
        waiting = [-1 for text, found in zip(self.texts, verdicts, strict=True) if found is None and not text.finished]
        if self.past is not None:
            self._keep(self.past, verdicts)
        elif self.slots is not None and self._fed:
            self._keep_rows(self.slots, verdicts)
            if self._keeps and not self._growing():
                self._read_padding(self.slots)
        return [len(found.path) for found in verdicts if found is not None] + waiting

    def _keep(self, past: Rollback, verdicts: Verdicts) -> None:
        """Keep what all texts have; one that ended before goes on with padding, which the pass was given."""
        ends = [
            text.ids.shape[1] - 1
            for text, found in zip(self.texts, verdicts, strict=True)
            if found is not None or not text.finished
        ]
        past.keep(min(self._end, *ends), self._end)
        if self._keeps and not self._growing():
            self._read_rest(past)
        unread = [text.ids.shape[1] - 1 - past.held for text in self._growing()]
        for text, count in zip(self._growing(), unread, strict=True):
            text.unread, text.ahead = count, count - min(unread)

    def _read_rest(self, past: Rollback) -> None:
        """Leave the cache of texts that ended as the model's own loop does, with all but the last token."""
        end = self._longest - 1
        if past.held < end:
            kwargs = private.kwargs_after(self.model, self.kwargs, end - self.start)
            fed = self.sequences()[:, :end]
            self.model(**self._prepared(fed, end - past.held, 1, kwargs), return_dict=True)
            self.more += 1
            past.keep(end, end)

    def _keep_rows(self, slots: Slots, verdicts: Verdicts) -> None:
        """Keep what each text has accepted, and the padding behind those that ended."""
        ended = [range(count - 1) if count else None for count in self._padding]
        paths = [path if found is None else found.path for path, found in zip(ended, verdicts, strict=True)]
        slots.keep(paths, self._fed)
        grown = [0 if path is None else 1 + len(path) for path in paths]
        self._next = self._next + torch.tensor(grown, device=self.device)[:, None]
        for text, count in zip(self.texts, self._padding, strict=True):
            if count:
                text.pad(count, self.pad)

    def _read_padding(self, slots: Slots) -> None:
        """Leave the cache as the model's own loop does, which reads padding until the last text ends."""
        if count := self._longest - min(text.ids.shape[1] for text in self.texts):
            self.model(**self._several([Draft((self.pad,) * (count - 1))] * len(self.texts)), return_dict=True)
            self._fed, self.more = count, self.more + 1
            self._keep_rows(slots, (None,) * len(self.texts))

    def close(self) -> None:
        """Leave the model as it was, and the cache as the model's own loop does, also where a text broke off."""
        self._stack.close()
        broke_off = self._open is not None  # at what a pass said: of that stay the tokens that were no drafts
        held = self._longest - 1 if self._open is None else self._open
        if self.past is not None:
            if broke_off:
                self.past.keep(min(held, self._end), self._end)
            self.past.close()
        if self.slots is not None:
            if broke_off and self._fed:
                self.slots.keep([()] * len(self.texts), self._fed)
            self.slots.close(held - self.start)

    def sequences(self) -> torch.Tensor:
        """All texts `[B, N]`, shorter ones padded at their end."""
        return torch.cat([self._cut(text.ids, self._longest) for text in self.texts])
