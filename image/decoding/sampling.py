"""Sampling: from logits to the distribution that is sampled, for many positions at once."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.decoding import one_hot
from mmaccel.errors import SettingError, UnsupportedTargetError

# Settings of `generate` that change the distribution in ways that no window decoder can follow yet, or ask for another
# cache than theirs, with the values at which they do nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "repetition_penalty": (None, 1.0),
    "typical_p": (None, 1.0),
    "min_p": (None, 0.0),
    "top_h": (None,),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "watermarking_config": (None,),
    "sequence_bias": (None,),
    "bad_words_ids": (None,),
    "begin_suppress_tokens": (None,),
    "penalty_alpha": (None,),
    "exponential_decay_length_penalty": (None,),
    "min_new_tokens": (0, None),
    "stop_strings": (None,),
    "max_time": (None,),
    "prompt_lookup_num_tokens": (None,),
    "cache_implementation": ("dynamic", "hybrid", "static", None),
}


@dataclass(frozen=True)
class Sampling:
    """Temperature, top-k and top-p in the order and with the meaning they have in transformers.

    Attributes
    ----------
    do_sample
        False takes the most likely token.
    temperature, top_k, top_p
        1.0, 0 and 1.0 do nothing.
    """

    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def from_config(cls, config: Any, codes: Container[int]) -> Sampling:
        """Read a `GenerationConfig`; `codes` are the model's ids of image tokens.

        Raises
        ------
        UnsupportedTargetError
            If it asks for something that is not sampled the same way here.
        SettingError
            If the temperature is not above 0, or `top_k` or `top_p` is out of range.
        """
        for name, harmless in NEUTRAL.items():
            value = getattr(config, name, None)
            if value not in harmless:
                raise UnsupportedTargetError(
                    f"{name}={value!r} is not supported while accelerated: pass {name}={harmless[-1]!r},"
                    " or call generate on the model after .remove()"
                )
        suppressed = [token for token in config.suppress_tokens or () if token in codes]
        if suppressed:  # other tokens are never sampled inside a picture anyway
            raise UnsupportedTargetError(
                f"suppress_tokens={suppressed} are image codes, and suppressing those is not supported: leave them out"
            )
        if config.do_sample and config.temperature is not None and not config.temperature > 0:
            raise SettingError(
                f"temperature={config.temperature}: it must be above 0; for the most likely tokens pass do_sample=False"
            )
        if config.do_sample and config.top_k is not None and config.top_k < 0:
            raise SettingError(f"top_k={config.top_k}: give 1 or more, or 0 for all")
        if config.do_sample and config.top_p is not None and not 0 <= config.top_p <= 1:
            raise SettingError(f"top_p={config.top_p}: give above 0 and at most 1, which is all")
        return cls(
            do_sample=bool(config.do_sample),
            temperature=1.0 if config.temperature is None else float(config.temperature),
            top_k=int(config.top_k or 0),
            top_p=1.0 if config.top_p is None else float(config.top_p),
        )

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits `[..., V]` (float32) to the probabilities that are sampled, `[..., V]`."""
        if not self.do_sample:
            return one_hot(logits.argmax(-1), logits.shape[-1])
        if self.temperature != 1.0:
            logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            worst_kept = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < worst_kept, -torch.inf)
        if self.top_p < 1.0:
            ordered, order = logits.sort(dim=-1)
            removed = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
            removed[..., -1] = False  # the most likely token always stays
            logits = logits.masked_fill(removed.scatter(-1, order, removed), -torch.inf)
        return logits.softmax(-1)
