"""Greedy decoding of a recogniser that verifies a draft, such as what it heard before the last words came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from mmaccel.errors import SettingError

from ..families.adapter import Encoded, SpeechAdapter
from .cross_cache import CrossCache
from .realigned_draft import RealignedDraft


@dataclass(frozen=True)
class Hypothesis:
    """What a decoder made of a piece of audio.

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
    """

    tokens: tuple[int, ...]
    forwards: int
    ended: bool
    accepted: int = 0


@dataclass
class EncoderStates(BaseModelOutput):
    """Encoder output with the mask that the decoders of some families ask for."""

    attention_mask: torch.Tensor | None = None


@torch.no_grad()
def decode(
    adapter: SpeechAdapter,
    encoded: Encoded,
    prompt: Sequence[int],
    draft: Sequence[int] = (),
    cache: CrossCache | None = None,
    max_new_tokens: int | None = None,
) -> Hypothesis:
    """Decode greedily, and verify a draft on the way (speculative decoding, 2023); exact.

    The draft is verified in one pass, and taken up again behind a mismatch
    (:class:`~mmaccel.speech.decoding.realigned_draft.RealignedDraft`). The tokens are those of `model.generate` without
    sampling and beams, whatever the draft; in half precision, ties of two tokens can fall the other way.

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
        Default the adapter's limit for so much speech.

    Raises
    ------
    SettingError
        If the prompt is empty, the limit negative, or the draft holds no token of this model.

    Examples
    --------
    >>> first = decode(adapter, adapter.encode(samples[:8000]), adapter.prompt())  # doctest: +SKIP
    >>> second = decode(adapter, adapter.encode(samples), adapter.prompt(), first.tokens)  # doctest: +SKIP
    """
    limit = adapter.limit(encoded.seconds) if max_new_tokens is None else max_new_tokens
    _check(adapter, prompt, draft, limit)
    step = _Decoder(adapter, encoded, prompt, cache)
    guess, tokens, accepted = RealignedDraft(_until_end(draft, adapter.end_tokens)[0]), list[int](), 0
    while len(tokens) < limit:
        block = guess.propose(limit - len(tokens) - 1)
        chosen = step(block, len(tokens))
        right = matching(block, chosen)
        step.keep(right, chosen[right])
        new, ended = _until_end(chosen[: right + 1], adapter.end_tokens)
        tokens += new
        accepted += min(right, len(new))
        if ended:
            return Hypothesis(tuple(tokens), step.forwards, True, accepted)
        guess.observe(tokens, right)
    return Hypothesis(tuple(tokens), step.forwards, False, accepted)


def matching(block: Sequence[int], chosen: Sequence[int]) -> int:
    """How many tokens of a draft are what the model chose: the rule for one-hot targets."""
    wrong = (place for place, (guess, token) in enumerate(zip(block, chosen, strict=False)) if guess != token)
    return next(wrong, len(block))


def _until_end(tokens: Sequence[int], ends: frozenset[int]) -> tuple[list[int], bool]:
    place = next((place for place, token in enumerate(tokens) if token in ends), None)
    return list(tokens[:place]), place is not None


def _check(adapter: SpeechAdapter, prompt: Sequence[int], draft: Sequence[int], limit: int) -> None:
    if not len(prompt):
        raise SettingError("the prompt is empty: pass adapter.prompt()")
    if limit < 0:
        raise SettingError(f"max_new_tokens={limit}: pass at least 0, or None for the adapter's limit")
    size = adapter.target.get_output_embeddings().weight.shape[0]
    wrong = [token for token in draft if not 0 <= token < size]
    if wrong:
        raise SettingError(f"draft holds {wrong[0]}: tokens of this model are 0 to {size - 1}")


class _Decoder:
    """Passes of the decoder over tokens that it has not seen yet, and a draft behind them."""

    def __init__(
        self, adapter: SpeechAdapter, encoded: Encoded, prompt: Sequence[int], cache: CrossCache | None
    ) -> None:
        self.adapter, self.model, self.states = adapter, adapter.target, encoded.hidden_states
        cross = DynamicCache() if cache is None else cache.update(adapter, self.states)
        self.cache = EncoderDecoderCache(DynamicCache(), cross)
        self.waiting, self.forwards = list(prompt), 0
        self.drafted = 0

    def __call__(self, block: list[int], step: int) -> list[int]:
        """What the model chooses after the tokens before, and after each token of `block`."""
        ids = torch.tensor([self.waiting + block], device=self.states.device)
        # a decoder may add positions to what it is given, in place
        states: Any = EncoderStates(last_hidden_state=self.states.clone())
        output = self.model(decoder_input_ids=ids, encoder_outputs=states, past_key_values=self.cache, use_cache=True)
        self.forwards, self.drafted = self.forwards + 1, len(block)
        rows = output.logits[0, len(self.waiting) - 1 :]
        for place, row in enumerate(rows):
            # as `generate`, which takes no notice of tokens that a smaller vocabulary does not have
            row[[token for token in self.adapter.banned(step + place) if token < len(row)]] = -torch.inf
        chosen: list[int] = rows.argmax(-1).tolist()
        return chosen

    def keep(self, accepted: int, token: int) -> None:
        """Forget the drafts from number `accepted` on; `token` is in their place."""
        self.cache.self_attention_cache.crop(accepted - self.drafted)
        self.waiting = [token]
