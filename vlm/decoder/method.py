"""Base of the methods on transformers decoders."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers.cache_utils import Cache

from mmaccel.errors import SettingError
from mmaccel.method import Method, is_count, is_share
from mmaccel.session import Session

from .call import AttentionCall, GenerateRun


@dataclass(frozen=True)
class DecoderMethod(Method):
    """A method that attends to fewer keys in the layers of a decoder.

    Class attributes
    ----------------
    replaces_cache
        Whether `generate` gets a cache from :meth:`make_cache`.
    drops_keys
        Whether layers come to hold the keys of fewer tokens.
    drops_tokens
        Whether later layers compute fewer tokens of the prompt.
    attends
        Whether it computes attention itself.
    decodes
        Whether it has a part in steps of one token, too.
    """

    neutral: ClassVar[dict[str, Any]] = {"budget": 1.0}
    replaces_cache: ClassVar[bool] = False
    drops_keys: ClassVar[bool] = False
    drops_tokens: ClassVar[bool] = False
    attends: ClassVar[bool] = True
    decodes: ClassVar[bool] = True

    def attach(self, session: Session, stack: ExitStack) -> None:
        session.adapter.attach(self, session, stack)

    @property
    def is_neutral(self) -> bool:
        """Whether these settings are plain attention."""
        return all(getattr(self, name) == value for name, value in self.neutral.items())

    def attend(self, call: AttentionCall) -> torch.Tensor | None:
        """The output `[B, Hq, M, D]`, or None to leave the call to another method or plain attention."""
        return None

    def after(self, call: AttentionCall) -> None:  # noqa: B027  optional
        """Called after a layer has attended."""

    def make_cache(self, config: Any, prompt: int, new: int) -> Cache:
        """A cache for the given numbers of prompt tokens and new tokens."""
        raise TypeError(f"{type(self).__name__} replaces no cache")  # pragma: no cover

    def cache_bytes(self, config: Any, batch: int, prompt: int, new: int, dtype: torch.dtype) -> int:
        """What that cache takes."""
        raise TypeError(f"{type(self).__name__} replaces no cache")  # pragma: no cover

    def drops(self, layers: int) -> dict[int, float]:
        """The share of a prompt that is kept after some layers of a decoder of so many, ascending."""
        return {}

    def votes(self, layers: int) -> bool:
        """Whether the heads of a decoder of so many layers choose the tokens that its later layers get."""
        return self.drops_tokens and not self.is_neutral

    def idle(self, run: GenerateRun) -> str:
        """Why the method may not have engaged."""
        raise NotImplementedError  # pragma: no cover

    def _check_budget(self) -> None:
        """Check that exactly one of `budget` and `tokens` is given, and in its range."""
        self._check_share("budget", of="the context", least=2, example=1024)

    def _check_share(self, setting: str, of: str, least: int, example: int) -> None:
        """Check that exactly one of a share and `tokens` is given, and in its range."""
        share, tokens = getattr(self, setting), getattr(self, "tokens")  # noqa: B009  fields of subclasses
        name = type(self).__name__
        if (share is None) == (tokens is None):
            raise SettingError(
                f"{name}({setting}={share!r}, tokens={tokens!r}): give one of the two,"
                f" such as {name}({setting}=None, tokens={example})"
            )
        if tokens is None:
            self._require(is_share(share), setting, f"above 0 and at most 1, a share of {of}")
        else:
            self._require(is_count(tokens, least), "tokens", f"a whole number of at least {least}")

    def count(self, length: int) -> int:
        """Tokens of a context of `length` to attend to or to keep, at least 2."""
        budget, tokens = getattr(self, "budget"), getattr(self, "tokens")  # noqa: B009
        return max(2, math.ceil(budget * length) if tokens is None else min(tokens, length))
