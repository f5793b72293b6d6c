"""Texts that grow by drafts within `generate`: target of the shared loop, and its rule."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import EncoderDecoderCache

from mmaccel import private

from .matching import Draft, Likely, Verdict, match
from .pass_attention import PassAttention
from .rollback import Rollback
from .slots import Slots


@dataclass(frozen=True)
class Drafts:
    """A draft for each row of a batch; those of texts that have ended are empty."""

    rows: tuple[Draft, ...]
    again: int = 0  # tokens that are read again with it

    @property
    def size(self) -> int:
        return max(draft.size for draft in self.rows)

    @property
    def width(self) -> int:
        return self.again + 1 + self.size

    @property
    def depth(self) -> int:
        return max(draft.depth for draft in self.rows)


Verdicts = tuple[Verdict | None, ...]  # None for a text that had ended


class GeneratedText:
    """One text, whose tokens are chosen as `generate` chooses them.

    Attributes
    ----------
    ids
        `[1, N]`, prompt and committed tokens.
    finished
        Whether a stopping criterion ended it.
    unread
        Committed tokens before the last that the cache does not hold any more.
    scores, logits
        `[1, V]` of each new token, after and before the processors; None where they are not asked for.
    """

    def __init__(self, ids: torch.Tensor, processors: Any, criteria: Any, config: Any, streamer: Any = None) -> None:
        self.ids, self.processors, self.criteria, self.streamer = ids, processors, criteria, streamer
        self.do_sample, self.finished, self.unread = config.do_sample, False, 0
        returned = config.return_dict_in_generate
        self.scores: list[torch.Tensor] | None = [] if returned and config.output_scores else None
        self.logits: list[torch.Tensor] | None = [] if returned and config.output_logits else None

    def choose(self, row: torch.Tensor) -> tuple[int, bool]:
        """Append what the model chooses by its logits `[1, V]`; that token, and whether the text ends."""
        logits = row.to(copy=True, dtype=torch.float32, device=self.ids.device)
        scores = self.processors(self.ids, logits)
        token = torch.multinomial(scores.softmax(-1), 1) if self.do_sample else scores.argmax(-1, keepdim=True)
        for kept, values in ((self.scores, scores), (self.logits, logits)):
            if kept is not None:
                kept.append(values)
        self.ids = torch.cat([self.ids, token], 1)
        if self.streamer is not None:
            self.streamer.put(token[0].cpu())
        told = None if self.scores is None else tuple(self.scores)
        self.finished = bool(self.criteria(self.ids, told).all())
        return int(token), self.finished


class GeneratedTexts:
    """The texts of a batch: target of the loop, and its rule.

    Processors and stopping criteria see each committed token of a text once and in order, as in a loop of single steps.

    Parameters
    ----------
    model, ids, processors, criteria, config, kwargs
        As `generate` gives them to its loop; `ids [B, N]`.
    spreads
        Whether rows have places of their own, as several texts, padded ones and trees need.
    likely
        How many of the likeliest tokens after each node a verdict tells.
    streamer
        Is given the tokens of the text, if there is one text.

    Attributes
    ----------
    texts
        One per row.
    slots
        Places of the rows in the cache, once the prompt is read; None where one text grows by chains, for which the
        model's own masks and positions do.
    past
        The cache of such a text, once the prompt is read.
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
    ) -> None:
        self.model, self.kwargs, self.criteria = model, kwargs, criteria
        self.spreads, self.likely = spreads, likely
        self.device, self.start = ids.device, ids.shape[1]
        self.texts = [GeneratedText(row[None], processors, criteria, config, streamer) for row in ids]
        self.is_decoder = not model.config.is_encoder_decoder
        self.first, self.drafted, self._fed = True, 0, 0  # tokens of the drafts, and all, that the last pass was given
        self.slots: Slots | None = None
        self.past: Rollback | None = None
        self._stack = ExitStack()
        self._attention: PassAttention | None = None  # once the prompt is read
        self._complete: set[int] = set()  # rows of which the cache holds the last token
        self._next = ids.new_zeros(1)  # position of the last token of each row
        found = kwargs["past_key_values"]
        self.cache = found.self_attention_cache if isinstance(found, EncoderDecoderCache) else found
        prefix = "" if self.is_decoder else "decoder_"
        self._mask, self._places = f"{prefix}attention_mask", f"{prefix}position_ids"

    @property
    def room(self) -> int:
        """Tokens that the shortest text may still get."""
        left = [text.ids.shape[1] for text in self.texts if not text.finished]
        if not left:
            return 0
        if self.first and (self.is_decoder or self.spreads):
            return 1  # the prompt may hold pictures: what prepares it knows nothing of drafts
        if self.texts[0].unread:
            return 1  # which are read without a draft, so that nothing has to be read a third time
        longest = self.criteria.max_length
        return sys.maxsize if longest is None else max(1, longest - max(left))

    def forward(self, drafts: Drafts) -> torch.Tensor:
        """Logits `[B, K + 1, V]` after the texts, and after each node of the drafts."""
        was_prompt = self.first
        if self.past is not None:
            self.past.mark(drafts.size)
        inputs = self._one(drafts.rows[0]) if self.slots is None else self._several(drafts)
        logits: torch.Tensor = self.model(**inputs, return_dict=True).logits
        if was_prompt:
            self._begin(inputs)
        self.drafted, self._fed = drafts.size, 0 if was_prompt else drafts.size + 1
        return logits[:, -drafts.size - 1 :]

    def _one(self, draft: Draft) -> dict[str, Any]:
        """Inputs of a prompt, or of one text and a chain."""
        ids = torch.cat([text.ids for text in self.texts]) if self.first else self.texts[0].ids
        fed = torch.cat([ids, ids.new_tensor([draft.tokens])], 1) if draft.size else ids
        kwargs = private.kwargs_after(self.model, self.kwargs, draft.size)
        embedded = self.first and kwargs.get("inputs_embeds") is not None
        held = self.cache.get_seq_length() if self.first else ids.shape[1] - 1 - self.texts[0].unread
        return self._prepared(fed, None if embedded else fed.shape[1] - held, draft.size + 1, kwargs)

    def _several(self, drafts: Drafts) -> dict[str, Any]:
        """Inputs of several texts, or of a tree."""
        assert self.slots is not None and self._attention is not None
        fed = torch.cat([text.ids[:, -1:] for text in self.texts])
        nodes = [[*draft.tokens, *[0] * (drafts.size - draft.size)] for draft in drafts.rows]
        fed = torch.cat([fed, fed.new_tensor(nodes).view(len(nodes), drafts.size)], 1)
        rows = [[0, *draft.depths, *[0] * (drafts.size - draft.size)] for draft in drafts.rows]
        depths = torch.tensor(rows, device=self.device)
        mask = self._shaped(self.slots.mask(drafts.rows, depths))
        places = self._next + depths
        self._attention.expect(mask, places, self.slots)
        kwargs = {
            **private.kwargs_after(self.model, self.kwargs, 1),
            self._mask: mask,
            self._places: places,
        }
        for name in ("token_type_ids", "mm_token_type_ids"):  # of the text, all as of its next token
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name][:, -1:].expand(-1, fed.shape[1])
        return self._prepared(fed, fed.shape[1], fed.shape[1], kwargs)

    def _shaped(self, allowed: torch.Tensor) -> torch.Tensor:
        """A mask as the model's attention takes it."""
        if self.model.config.get_text_config(decoder=True)._attn_implementation == "sdpa":
            return allowed
        added = torch.zeros(allowed.shape, dtype=self.model.dtype, device=allowed.device)
        return added.masked_fill(~allowed, torch.finfo(added.dtype).min)

    def _prepared(self, fed: torch.Tensor, count: int | None, keep: int, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Inputs of a pass over the last `count` of the tokens, with logits of the last `keep`."""
        found: dict[str, Any] = self.model.prepare_inputs_for_generation(
            fed, next_sequence_length=count, is_first_iteration=self.first, **kwargs
        )
        if "logits_to_keep" in found:  # some models set it themselves
            found["logits_to_keep"] = keep
        return found

    def _begin(self, inputs: dict[str, Any]) -> None:
        """The prompt is read: from here on drafts may have to be taken back, and rows may have places of their own."""
        self.first = False
        self._attention = PassAttention(self.model, self._stack)
        if not self.spreads:
            self.past = Rollback(self.cache)
            return
        held, mask, places = self.cache.get_seq_length(), self.kwargs.get(self._mask), inputs.get(self._places)
        seen = torch.ones(len(self.texts), held, device=self.device) if mask is None else mask[:, :held]
        self.slots = Slots(self.cache, seen)
        last = torch.full((len(self.texts), 1), held - 1, device=self.device) if places is None else places[..., -1:]
        self._next = last + 1

    def judge(self, output: torch.Tensor, drafts: Drafts) -> Verdicts:
        """Follow each text through its draft."""
        likely = self._likely(output)
        return tuple(
            None if text.finished else self._judged(text, rows, draft, likely[row])
            for row, (text, rows, draft) in enumerate(zip(self.texts, output, drafts.rows, strict=True))
        )

    def _likely(self, output: torch.Tensor) -> Sequence[Sequence[Likely]]:
        """Of each row and node."""
        if not self.likely:
            return [()] * len(self.texts)
        logits = output.float()
        best, tokens = logits.topk(min(self.likely, logits.shape[-1]))
        shares = (best - logits.logsumexp(-1, keepdim=True)).exp()
        rows = zip(tokens.tolist(), shares.tolist(), strict=True)
        return [[list(zip(*node, strict=True)) for node in zip(*row, strict=True)] for row in rows]

    def _judged(self, text: GeneratedText, rows: torch.Tensor, draft: Draft, likely: Sequence[Likely]) -> Verdict:
        found = match(draft, lambda node: text.choose(rows[node + 1][None]))
        return Verdict(found.path, found.tokens, likely[: draft.size + 1])

    def commit(self, verdicts: Verdicts) -> list[int]:
        """Take the rejected drafts back from the cache."""
        if self.slots is None:
            found = verdicts[0]
            assert found is not None and self.past is not None
            self.past.keep(len(found.path), self.drafted)
            if self.texts[0].finished and self.past.unread:
                self._read_again(len(found.path))
            self.texts[0].unread = self.past.unread
            self.kwargs = private.kwargs_after(self.model, self.kwargs, len(found.tokens))
        elif self._fed:
            self.slots.keep([self._path(row, found) for row, found in enumerate(verdicts)], self._fed)
            grown = [0 if found is None else len(found.tokens) for found in verdicts]
            self._next = self._next + torch.tensor(grown, device=self.device)[:, None]
        return [len(found.path) for found in verdicts if found is not None]

    def _read_again(self, accepted: int) -> None:
        """Leave the cache of a text that ended as the model's own loop does, with all but the last token."""
        assert self.past is not None
        ids, kwargs = self.texts[0].ids[:, :-1], private.kwargs_after(self.model, self.kwargs, accepted)
        self.model(**self._prepared(ids, self.past.unread, 1, kwargs), return_dict=True)
        self.past.unread = 0

    def _path(self, row: int, found: Verdict | None) -> tuple[int, ...] | None:
        """What to keep of a row beside its last token; None once the last token of an ended text is kept."""
        if found is not None:
            return found.path
        is_held = row in self._complete
        self._complete.add(row)
        return None if is_held else ()

    def close(self) -> None:
        """Leave the model as it was, and the cache as the model's own loop does."""
        self._stack.close()
        if self.past is not None:
            self.past.close()
        if self.slots is not None:
            self.slots.close(max(text.ids.shape[1] for text in self.texts) - self.start - 1)

    def sequences(self, pad: int) -> torch.Tensor:
        """All texts `[B, N]`, shorter ones padded at their end."""
        longest = max(text.ids.shape[1] for text in self.texts)
        ends = (longest - text.ids.shape[1] for text in self.texts)
        return torch.cat(
            [functional.pad(text.ids, (0, end), value=pad) for text, end in zip(self.texts, ends, strict=True)]
        )

    def steps(self, name: str) -> tuple[torch.Tensor, ...] | None:
        """Scores or logits `[B, V]` of each step, 0 for texts that had ended; None where they are not asked for."""
        kept = [getattr(text, name) for text in self.texts]
        if kept[0] is None:
            return None
        none = torch.zeros_like(kept[0][0])
        return tuple(torch.cat(step) for step in itertools.zip_longest(*kept, fillvalue=none))
