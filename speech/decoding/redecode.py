"""Greedy decoding of a recogniser that verifies a draft, such as its last hypothesis."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, EncoderDecoderCache

from mmaccel.cache.argument import cached
from mmaccel.decoding import Draft, FixedWidth, Stats, Verdict, draft_and_verify, match
from mmaccel.decoding.setting import rounds_by_pass

from .cross_cache import CrossCache
from .gathering import Gathering
from .packed import EncoderStates, packed_pass, packs
from .realigned_draft import RealignedDraft

if TYPE_CHECKING:
    from ..families.adapter import Encoded, SpeechAdapter


@dataclass(frozen=True)
class Hypothesis:
    """A decoder's output for a piece of audio.

    Attributes
    ----------
    tokens
        New tokens, without prompt and end.
    forwards
        Passes of the decoder.
    ended
        Whether the model ended the text; False where the limit did.
    accepted
        How many of the tokens came from the draft.
    language
        The language that the decoder was told; empty where the model has no others.
    settled
        How many of the tokens stay whatever follows, of models that tell; else None.
    """

    tokens: tuple[int, ...]
    forwards: int
    ended: bool
    accepted: int = 0
    language: str = ""
    settled: int | None = None


@torch.no_grad()
def decode(
    adapter: SpeechAdapter,
    encoded: Encoded,
    prompt: Sequence[int],
    draft: Sequence[int] = (),
    cache: CrossCache | None = None,
    max_new_tokens: int | None = None,
    gathering: Gathering | None = None,
) -> Hypothesis:
    """Decode greedily, and verify a draft on the way (speculative decoding, 2023); exact.

    The draft is verified in one pass, and taken up again behind a mismatch
    (:class:`~mmaccel.speech.decoding.realigned_draft.RealignedDraft`). The tokens are those of `model.generate` without
    sampling and beams, whatever the draft; in half precision, ties of two tokens can fall the other way. Of the rules
    in its `generation_config` suppressed tokens alone are followed, and no others such as `repetition_penalty`.

    Parameters
    ----------
    adapter
        Of the model.
    encoded
        The audio, hidden states `[1, T, D]`; they are not changed.
    prompt
        Tokens that the decoder starts from, see :meth:`SpeechAdapter.prompt`.
    draft
        The guess, such as the tokens of the hypothesis before; default none. It ends at the first end token.
    cache
        Cross-attention keys and values of earlier calls, for encoders that only append; brought up to date.
    max_new_tokens
        Default the adapter's limit for so much speech. Never more than the decoder has positions for.
    gathering
        Where passes meet those of other threads; default None, alone. In one pass they are equal up to rounding.

    Examples
    --------
    >>> first = decode(adapter, adapter.encode(samples[:8000]), adapter.prompt())  # doctest: +SKIP
    >>> second = decode(adapter, adapter.encode(samples), adapter.prompt(), first.tokens)  # doctest: +SKIP
    """
    limit = adapter.limit(encoded.seconds) if max_new_tokens is None else max_new_tokens
    limit = min(limit, adapter.room(prompt))
    known = () if rounds_by_pass(adapter.target) else draft  # there a token has other numbers in a draft than alone
    guess = RealignedDraft(list(itertools.takewhile(lambda token: token not in adapter.end_tokens, known)))
    text, stats = _Text(adapter, encoded, prompt, cache, limit, gathering), Stats()
    draft_and_verify(guess, text, FixedWidth(sys.maxsize), stats)
    return Hypothesis(tuple(text.tokens), stats.forwards, text.ended, text.accepted)


class CrossPasses:
    """A decoder with cross-attention."""

    def __init__(self, adapter: SpeechAdapter, encoded: Encoded, cache: CrossCache | None) -> None:
        self.model, self.states = adapter.target, encoded.hidden_states
        cross = DynamicCache() if cache is None else cache.update(adapter, self.states)
        self.cache = EncoderDecoderCache(DynamicCache(), cross)

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits `[1, n, V]` after each of these tokens."""
        ids = torch.tensor([list(tokens)], device=self.states.device)
        # a decoder may add positions to what it is given, in place
        states: Any = EncoderStates(last_hidden_state=self.states.clone())
        output = self.model(decoder_input_ids=ids, encoder_outputs=states, **cached(self.cache), use_cache=True)
        return output.logits

    def forget(self, count: int) -> None:
        """Take back the last tokens."""
        self.cache.self_attention_cache.crop(-count)


class _Text:
    """The text of one piece of audio: target of the loop, which chooses greedily.

    It does without `generate`, whose preparation costs as much as a pass where a stream decodes anew every moment, and
    keeps the cross-attention of earlier calls.
    """

    def __init__(
        self,
        adapter: SpeechAdapter,
        encoded: Encoded,
        prompt: Sequence[int],
        cache: CrossCache | None,
        limit: int,
        gathering: Gathering | None,
    ) -> None:
        self.adapter, self.passes, self.gathering = adapter, adapter.passes(encoded, cache), gathering
        self.device, self.limit = encoded.hidden_states.device, limit
        self.tokens: list[int] = []
        self.accepted, self.ended = 0, False
        self.waiting, self.drafted = list(prompt), 0  # tokens that the cache does not hold, and drafts that it does
        self.ids = self.waiting  # of the pass

    @property
    def room(self) -> int:
        return 0 if self.ended else self.limit - len(self.tokens)

    def forward(self, draft: Draft) -> torch.Tensor:
        """Logits `[1, K + 1, V]` after the tokens before, and after each token of the draft."""
        self.ids, self.drafted = [*self.waiting, *draft.tokens], draft.size
        logits: torch.Tensor = self.alone() if self.gathering is None else self.gathering.ask(_passes, self)
        return logits[:, len(self.waiting) - 1 :]

    def alone(self) -> torch.Tensor:
        """Logits of a pass over this text only."""
        return self.passes.logits(self.ids)

    def judge(self, output: torch.Tensor, draft: Draft) -> Verdict:
        rows, done = output[0], len(self.tokens)
        # neighbours of which the same is banned at once: each write sends its tokens to the device
        for banned, same in itertools.groupby(range(len(rows)), lambda place: self.adapter.banned(done + place)):
            places = list(same)
            # as `generate`, which takes no notice of tokens that a smaller vocabulary does not have
            if known := [token for token in banned if token < rows.shape[1]]:
                rows[places[0] : places[-1] + 1, known] = -torch.inf
        chosen: list[int] = output[0].argmax(-1).tolist()
        return match(draft, lambda node: (chosen[node + 1], chosen[node + 1] in self.adapter.end_tokens))

    def commit(self, verdict: Verdict) -> list[int]:
        accepted = len(verdict.path)
        self.passes.forget(self.drafted - accepted)
        self.waiting = [verdict.tokens[-1]]
        self.ended = verdict.tokens[-1] in self.adapter.end_tokens
        self.tokens += verdict.tokens[:-1] if self.ended else verdict.tokens
        self.accepted += accepted
        return [accepted]


@torch.no_grad()
def _passes(texts: list[_Text]) -> list[torch.Tensor]:
    """The next pass of each text, in one where that is possible."""
    passes = [text.passes for text in texts if isinstance(text.passes, CrossPasses)]
    if len(texts) == 1 or len(passes) < len(texts) or not packs(texts[0].adapter):
        return [text.alone() for text in texts]
    columns = ([text.ids for text in texts], [one.states for one in passes], [one.cache for one in passes])
    return packed_pass(texts[0].adapter, *columns)
