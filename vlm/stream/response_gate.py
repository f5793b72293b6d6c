"""When a model that watches a stream should speak: once its last answer no longer fits what it sees."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from mmaccel.cache.argument import cached
from mmaccel.errors import SettingError
from mmaccel.method import is_number


class ResponseGate:
    """Speak when the last answer has become less likely than it was (LiveStar, 2025).

    The model reads its last answer once more behind the new frames, which takes one forward pass and no decoding.
    If the answer's perplexity is above `threshold` times what it was when it was given, the scene has changed, and
    it is time for a new one. If not, silence saves a whole answer.

    Parameters
    ----------
    threshold
        Factor on the perplexity, at least 1; default 1.04 as in the paper. More is more silent.

    Attributes
    ----------
    reference
        The perplexity that new ones are compared with; None before the first.

    Raises
    ------
    SettingError
        If the threshold or a perplexity is out of range.

    Examples
    --------
    >>> gate = ResponseGate()
    >>> [gate.update(perplexity) for perplexity in (3.0, 3.1, 3.2, 3.3)]
    [True, False, True, False]
    """

    def __init__(self, threshold: float = 1.04) -> None:
        if not is_number(threshold, 1):
            raise SettingError(f"ResponseGate(threshold={threshold!r}): pass a factor of at least 1, such as 1.04")
        self.threshold = threshold
        self.reference: float | None = None

    def update(self, perplexity: float) -> bool:
        """Whether to speak now.

        Parameters
        ----------
        perplexity
            Of the last answer given the frames up to now: the exponential of the mean negative log-likelihood of
            its tokens, so at least 1. An infinite one speaks.

        Returns
        -------
        True also for the first one. With each True the perplexity becomes the reference; call :meth:`answered`
        where that of the new answer is known.
        """
        self._check(perplexity)
        speak = self.reference is None or perplexity > self.threshold * self.reference
        if speak:
            self.reference = perplexity
        return speak

    def answered(self, perplexity: float) -> None:
        """Compare from now on with a new answer, whose perplexity at the time it was given is this."""
        self._check(perplexity)
        self.reference = perplexity

    def reset(self) -> None:
        """Forget the last answer: a new stream begins."""
        self.reference = None

    def _check(self, perplexity: float) -> None:
        if not perplexity >= 1:  # also not a number
            raise SettingError(
                f"perplexity={perplexity!r}: at least 1, the exponential of a mean loss such as loss.exp()"
            )


@torch.no_grad()
def perplexity(model: Any, ids: torch.Tensor, embeds: torch.Tensor, cache: Any, words: torch.Tensor) -> float:
    """How little a model expects words `[1, N]` behind a prompt of these ids and embeddings; the cache grows by them.

    ``exp`` of the mean loss; the cache holds what was read of the prompt.
    """
    both = torch.cat([embeds, model.get_input_embeddings()(words.to(ids))], 1)
    known = cache.get_seq_length()
    output = model(inputs_embeds=both[:, known:], **cached(cache))
    logits = output.logits[0, ids.shape[1] - 1 - known : -1]
    return float(cross_entropy(logits.float(), words[0].to(logits.device)).exp())
