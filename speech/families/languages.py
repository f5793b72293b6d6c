"""How languages are spelled."""

from __future__ import annotations

from mmaccel.errors import SettingError, shown

AUTO = "auto"  # the language that asks the model which one it hears
# What Whisper calls languages that have two codes, or that it takes for one with another.
OF_WHISPER = {"cmn": "zh", "fil": "tl", "in": "id", "iw": "he", "ji": "yi", "jv": "jw", "mo": "ro", "nb": "no"}


def language_code(language: str) -> str:
    """``"de"`` for ``"german"``, ``"de-DE"`` or ``"<|de|>"``; what names no language stays.

    `SettingError` if it is no text.

    Examples
    --------
    >>> language_code("German"), language_code("pt-BR"), language_code("xx")
    ('de', 'pt', 'xx')
    """
    if not isinstance(language, str):
        raise SettingError(f"language={shown(language)}: give one, such as 'de', or 'auto' for the one that is heard")
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE  # brings the tokenizers along

    name = language.lower().strip("<|>")
    without_region = name.replace("_", "-").partition("-")[0]
    return str(TO_LANGUAGE_CODE.get(name) or TO_LANGUAGE_CODE.get(without_region, without_region))


def whisper_code(language: str) -> str:
    """:func:`language_code`, as Whisper has it.

    Examples
    --------
    >>> whisper_code("nb-NO"), whisper_code("fil"), whisper_code("German")
    ('no', 'tl', 'de')
    """
    code = language_code(language)
    return OF_WHISPER.get(code, code)
