"""Where the pages of a prompt are, in tokens that do not depend on what stands before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmaccel.errors import SettingError, shown


def mark_contexts(
    tokenizer: Any, prompt: str, contexts: str | Sequence[str], add_special_tokens: bool = True
) -> dict[str, Any]:
    """Tokenize a prompt so that each of its pages has the same tokens wherever it stands.

    Parameters
    ----------
    tokenizer
        Of transformers, or a processor that has one.
    prompt
        All of the text, as `apply_chat_template(..., tokenize=False)` makes it or by hand.
    contexts
        The pages in it, word for word, in the order in which they stand there; one string is one page.
    add_special_tokens
        Whether the prompt gets the tokenizer's first tokens, default True; False behind a chat template, which has
        them.

    Returns
    -------
    `input_ids` and `attention_mask` `[1, L]`, and `contexts`, the first token of each page and the one after its last:
    arguments of `generate` with :class:`~mmaccel.vlm.JoinedContext`.

    Raises
    ------
    SettingError
        If a page is empty, or is not in the prompt behind the one before it.

    Examples
    --------
    >>> inputs = mark_contexts(tokenizer, f"{page}\\n\\n{question}", [page])  # doctest: +SKIP
    >>> tokens = fast.generate(**inputs)  # doctest: +SKIP
    """
    if not hasattr(tokenizer, "convert_tokens_to_ids"):
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    ids: list[int] = []
    spans, at = [], 0
    for number, page in enumerate([contexts] if isinstance(contexts, str) else contexts):
        place = prompt.find(page, at) if isinstance(page, str) and page else -1
        if place < 0:
            raise SettingError(
                f"contexts[{number}]={shown(page)} is not in the prompt behind the pages before it: give pages word for"
                " word, in their order"
            )
        ids += _tokens(tokenizer, prompt[at:place], add_special_tokens and not at)
        start, at = len(ids), place + len(page)
        ids += _tokens(tokenizer, page, False)
        spans.append((start, len(ids)))
    ids += _tokens(tokenizer, prompt[at:], add_special_tokens and not at)
    inputs = torch.tensor([ids])
    return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs), "contexts": spans}


def _tokens(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    if not text and not add_special_tokens:
        return []
    return tokenizer(text, add_special_tokens=add_special_tokens).input_ids
