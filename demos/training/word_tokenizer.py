"""The tokenizer that all recipes share: every word that their worlds can say is one token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast


def word_tokenizer(
    marks: Sequence[str], words: Iterable[str], unsaid: str = "", template: str = "", **settings: Any
) -> PreTrainedTokenizerFast:
    """A tokenizer of lower-case words without punctuation.

    Parameters
    ----------
    marks
        Special tokens, which get the first numbers.
    words
        All words, in the order of their numbers; those that come again are left out.
    unsaid
        Words between bars, such as ``"a|an|the"``, that are cut out of every text.
    template
        How a text stands among marks, such as ``"<bos> $A"``; by default as it is.
    settings
        Of :class:`~transformers.PreTrainedTokenizerFast`.
    """
    vocabulary = {token: number for number, token in enumerate([*marks, *dict.fromkeys(words)])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    cut = [r"[,.!?\"]", *([rf"\b({unsaid})\b"] if unsaid else [])]
    replaced = [normalizers.Replace(Regex(pattern), " ") for pattern in cut]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *replaced])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template:
        named = [(mark, vocabulary[mark]) for mark in marks if mark in template]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", **settings)
