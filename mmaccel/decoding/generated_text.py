"""One text of a batch as it grows, and the drafts for all of them."""

from __future__ import annotations

import copy
import itertools
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList

from mmaccel import private

from .matching import Draft, Verdict


@dataclass(frozen=True)
class Drafts:
    """A draft for each row of a batch; those of texts that have ended are empty.

    Attributes
    ----------
    rows
        One per text.
    known
        Tokens of each text that are read before its draft, the last one included; 0 of one that has ended.

    Examples
    --------
    >>> Drafts((Draft((5, 6)), Draft(())), known=(1, 4)).width
    3
    """

    rows: tuple[Draft, ...]
    known: tuple[int, ...]

    @property
    def size(self) -> int:
        return max(draft.size for draft in self.rows)

    @property
    def width(self) -> int:
        """Tokens of the pass: as far as the longest draft goes, and without any what all texts have."""
        drafted = [known + draft.size for known, draft in zip(self.known, self.rows, strict=True) if draft.size]
        return max(drafted or [min(known for known in self.known if known)])

    @property
    def depth(self) -> int:
        return max(draft.depth for draft in self.rows)

    @property
    def nodes(self) -> int:
        return sum(draft.size for draft in self.rows)


def positions_of(model: Any) -> int:
    """Tokens of a text that a decoder has positions for, where it looks them up in a table; else there is no end."""
    config = model.config.get_text_config(decoder=True)
    size = getattr(config, "max_position_embeddings", None)
    if size is None:
        longest: int = getattr(config, "max_seq_len", sys.maxsize)  # of MPT, which makes its table in each pass
        return longest
    decoder = private.decoder_of(model)
    named = itertools.chain(decoder.named_parameters(), decoder.named_buffers())
    tables = (value for name, value in named if "pos" in name or "wpe" in name)
    return size if any(table.ndim == 2 and len(table) >= size for table in tables) else sys.maxsize


# What copies of processors and stopping criteria share: it is large, or other threads tell them something by it.
SHARED = (torch.nn.Module, PreTrainedTokenizerBase, threading.Event)


def is_of_transformers(part: Any) -> bool:
    """Whether a processor or a stopping criterion is one that transformers has, and not the user's own."""
    return type(part).__module__.startswith("transformers.")


def copied(parts: Any) -> Any:
    """Processors of logits, or stopping criteria, with a memory of their own."""
    held = [value for part in parts for value in vars(part).values()]
    return copy.deepcopy(parts, {id(value): value for value in held if isinstance(value, SHARED)})


def of_row(processors: Any, row: int, rows: int) -> Any:
    """Processors of logits that are shown one row of a batch, with what they remember of it."""
    if rows == 1:
        return processors
    own = copied(processors)
    for processor in own:
        lengths = getattr(processor, "prompt_ignore_length", None)  # of the padding, which repetition leaves out
        if isinstance(lengths, torch.Tensor):
            processor.prompt_ignore_length = lengths[row : row + 1]
    return own


def criteria_of_row(criteria: Any, rows: int) -> Any:
    """Stopping criteria that are shown one row of a batch; those of transformers remember nothing of it."""
    if rows == 1:
        return criteria
    return StoppingCriteriaList(each if is_of_transformers(each) else copied([each])[0] for each in criteria)


Verdicts = tuple[Verdict | None, ...]  # None for a text that had ended, or waits for others


class GeneratedText:
    """One text, whose tokens are chosen as `generate` chooses them.

    Attributes
    ----------
    ids
        `[1, N]`, prompt and committed tokens.
    finished
        Whether a stopping criterion ended it.
    unread, ahead
        Committed tokens before the last that the cache does not hold, and how many more these are than of the slowest.
    padding
        Tokens behind a text that ended before others, in `ids`.
    longest
        Tokens that the model has positions for.
    room
        Tokens that it may still get, before a length is reached.
    scores, logits
        `[1, V]` of each new token, after and before the processors; None where they are not asked for.
    """

    def __init__(self, ids: torch.Tensor, processors: Any, criteria: Any, config: Any, streamer: Any = None) -> None:
        self.ids, self.processors, self.criteria, self.streamer = ids, processors, criteria, streamer
        self.do_sample, self.finished, self.unread, self.ahead = config.do_sample, False, 0, 0
        self.padding, self.longest = 0, sys.maxsize
        returned = config.return_dict_in_generate
        self.scores: list[torch.Tensor] | None = [] if returned and config.output_scores else None
        self.logits: list[torch.Tensor] | None = [] if returned and config.output_logits else None

    @property
    def room(self) -> int:
        longest = min(self.longest, self.criteria.max_length or sys.maxsize)
        return max(1, longest - self.ids.shape[1])

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
        ended = self.criteria(self.ids, told).all()
        number, finished = torch.stack([token[0, 0], ended.to(token.dtype)]).tolist()  # one wait for a GPU
        self.finished = bool(finished)
        return number, self.finished

    def pad(self, count: int, token: int) -> None:
        """Put so much padding behind a text that ended."""
        self.ids, self.padding = functional.pad(self.ids, (0, count), value=token), self.padding + count


def padding_beside(
    texts: Sequence[GeneratedText], drafts: Sequence[Draft], token: int
) -> tuple[list[Draft], list[int]]:
    """Drafts, and for texts that ended padding up to the longest text, so far as it fits beside them; how much it is.

    The first of it is the last token of the text, which was not read.
    """
    longest, width = max(text.ids.shape[1] for text in texts), 1 + max(draft.size for draft in drafts)
    counts = [min(width, longest - text.ids.shape[1]) if text.finished else 0 for text in texts]
    padding = [Draft((token,) * max(0, count - 1)) for count in counts]
    rows = zip(texts, padding, drafts, strict=True)
    return [ended if text.finished else draft for text, ended, draft in rows], counts


def texts_of(ids: torch.Tensor, processors: Any, criteria: Any, config: Any, streamer: Any) -> list[GeneratedText]:
    """A text for each row of `ids [B, N]`, whose processors and criteria remember it alone."""
    rows = len(ids)
    return [
        GeneratedText(row[None], of_row(processors, number, rows), criteria_of_row(criteria, rows), config, streamer)
        for number, row in enumerate(ids)
    ]


def aligned(logits: torch.Tensor, texts: Sequence[GeneratedText], end: int, count: int) -> torch.Tensor:
    """Of a pass `[B, M, V]` up to `end` what belongs to the last token of each text and its draft, `count` in all."""
    before = logits.shape[1] - end - 1
    lengths = [text.ids.shape[1] for text in texts]
    if len(lengths) == 1:
        return logits[:, before + lengths[0] :]
    firsts = before + torch.tensor(lengths, device=logits.device)
    places = (firsts[:, None] + torch.arange(count, device=logits.device)).clamp(0, logits.shape[1] - 1)
    return logits.gather(1, places[..., None].expand(-1, -1, logits.shape[2]))
