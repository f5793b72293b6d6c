"""What recognisers have in common that write their text token by token, each after those before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from .adapter import SpeechAdapter


class WrittenAdapter(SpeechAdapter):
    """Base of the adapters of models that `generate` their text.

    Attributes
    ----------
    tokens_per_second, spare_tokens
        Most tokens that a text has: so many for each second, and so many more, which short pieces need.
    """

    tokens_per_second: ClassVar[float] = 6.5  # of Moonshine's authors, against loops
    spare_tokens: ClassVar[int] = 4

    def limit(self, seconds: float) -> int:
        return math.ceil(self.tokens_per_second * seconds) + self.spare_tokens

    def banned(self, step: int) -> Sequence[int]:
        settings = self.target.generation_config
        first = settings.begin_suppress_tokens or () if step == 0 else ()
        return [*(settings.suppress_tokens or ()), *first]

    @property
    def end_tokens(self) -> frozenset[int]:
        end = self.target.generation_config.eos_token_id
        return frozenset([] if end is None else end if isinstance(end, list) else [end])

    def text(self, tokens: Sequence[int]) -> str:
        return str(self._processor().tokenizer.decode(self._spoken(tokens), skip_special_tokens=True)).strip()

    def _spoken(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that are no marks."""
        marks = {*self.end_tokens, *self._processor().tokenizer.all_special_ids}
        return [int(token) for token in tokens if int(token) not in marks]
