"""The content of a cache over the turns of a conversation with shortened prompts."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from mmaccel.errors import PromptError

from ..pruning.inner import Cuts
from .prompt import Prompt

ATTRIBUTE = "_mmaccel_turn"  # on the cache itself, so that its copies have it too


@dataclass
class Turn:
    """The content of a cache after a call.

    Attributes
    ----------
    session
        The adapter of the session that made it, if there still is one.
    prompt
        The prompt and the answer; None where they are unknown: the call has not ended, or gave several answers.
    cuts
        The tokens dropped from it inside the decoder.
    length
        Tokens in the cache.
    """

    session: weakref.ref[Any]
    prompt: Prompt | None
    cuts: Cuts | None
    length: int


def remember(cache: Any, adapter: Any, prompt: Prompt | None, cuts: Cuts | None = None) -> None:
    """Attach its content to a cache."""
    setattr(cache, ATTRIBUTE, Turn(weakref.ref(adapter), prompt, cuts, int(cache.get_seq_length())))


def recalled(cache: Any, adapter: Any) -> Turn | None:
    """The content of a cache; None if it has none, or no session has shortened it.

    Raises
    ------
    PromptError
        If it is from another session or was used elsewhere since, so that its tokens are unknown.
    """
    turn: Turn | None = getattr(cache, ATTRIBUTE, None)
    if turn is None or not cache.get_seq_length():
        return None
    if turn.session() is not adapter:
        raise PromptError(
            "past_key_values holds a prompt that another session has shortened: go on with that session, or start"
            " again without past_key_values"
        )
    if turn.prompt is None:
        raise PromptError(
            "past_key_values holds a prompt that was shortened by a call which did not end, or gave several answers:"
            " start again without past_key_values"
        )
    if cache.get_seq_length() != turn.length:
        raise PromptError(
            f"past_key_values holds {cache.get_seq_length()} tokens, and {turn.length} after the last call that"
            " ended well: start again without past_key_values"
        )
    return turn
