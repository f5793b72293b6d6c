"""Where things are in language models that hear: audio tokens stand in their prompt."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from transformers import BatchFeature, DynamicCache

from mmaccel.adapter import register_adapter
from mmaccel.cache.argument import cached
from mmaccel.decoding.setting import pass_device
from mmaccel.errors import SettingError, shown
from mmaccel.machine import unrounded
from mmaccel.patching import hook

from ..decoding.cross_cache import CrossCache
from .adapter import Encoded, Passes, Word, WrittenAdapter
from .languages import AUTO, language_code
from .rows import CHAT, TranscriptionPrompt
from .spelled import spread


@register_adapter
class ChatAdapter(WrittenAdapter):
    """Language models with audio tokens: Qwen3-ASR, Granite Speech, Voxtral, Qwen2-Audio and others.

    The processor makes the prompt that asks for a transcript, and the model itself puts its audio features into it.
    The text is decoded behind it with the last hypothesis as a verified draft. Exact: the tokens of `generate` without
    sampling, beams, and other rules than suppressed tokens, such as `repetition_penalty`. Such models tell no times:
    words are spread over the segment by their letters.
    """

    family = "speech_chat"
    classes: ClassVar[tuple[str, ...]] = tuple(CHAT)
    longest = 30.0
    tokens_per_second = 25.0  # of any language: a word of Hindi or Greek is five or six of Qwen's
    spare_tokens: ClassVar[int] = 16  # some write the language first
    beside = frozenset({"vlm"})  # the decoder, which also answers questions about sound
    advice: ClassVar[str] = (
        "its streams verify drafts by themselves: take speech.StreamingRecognizer for what is said, and vlm.FusedDraft"
        " for answers to questions about sound"
    )

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        names = (cls.__name__ for cls in type(target).__mro__)
        self._asked: TranscriptionPrompt = next(CHAT[name] for name in names if name in CHAT)
        self._told: dict[str, Any] = {}
        self._last: int | None = None

    def instruct(self, language: str | None = None, task: str | None = None, prompt: str = "") -> None:
        asked, prompt = self._asked, prompt.strip()
        language = self._told.get("language") if language is None else language
        language = None if language == AUTO else language
        super().instruct(None if asked.language else language, task, "" if asked.hotwords else prompt)
        for spelling in dict.fromkeys((language, language and language_code(language))):
            error = self._refusal({"language": spelling, asked.hotwords: prompt})
            if error is None:
                return
        raise SettingError(f"language={language!r}, prompt={shown(prompt)}: {error}") from error

    def _refusal(self, told: dict[str, Any]) -> ValueError | None:
        """The processor's own word on what it does not know; None where it takes all that it is told."""
        before = self._told, self._last
        self._told, self._last = {name: value for name, value in told.items() if name and value}, None
        try:
            _ = self.prompt() if self._told else None
        except ValueError as error:
            self._told, self._last = before
            return error
        return None

    def language_of(self, encoded: Encoded | None) -> str:
        return language_code(self._told.get("language", ""))

    def encode(self, samples: torch.Tensor) -> Encoded:
        seconds = self._check_samples(samples)
        if self._asked.lora:
            self._turn_lora_on()
        with torch.no_grad():
            return Encoded(self._read(self._inputs(samples))[:, :-1], seconds)

    def _turn_lora_on(self) -> None:
        """As the model's `generate` does for audio; a call of it for text alone has turned it off."""
        for part in self.target.modules():
            if getattr(part, "disable_adapters", None) is True:  # a layer of peft: models have a method of that name
                part.enable_adapters(True)

    def _inputs(self, samples: torch.Tensor) -> Mapping[str, Any]:
        """What `generate` would be given for samples `[n]`."""
        with unrounded():
            made = self._asked.ask(self._processor(), samples.cpu().numpy(), self.sample_rate, self._told)
        return BatchFeature(made).to(pass_device(self.target, samples), self.target.dtype)

    def _read(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Embeddings `[1, L, D]` that the language model is given, audio in its place."""

        def stop(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Given(kwargs["inputs_embeds"])

        with ExitStack() as stack:
            hook(stack, self.target.get_decoder(), before=stop, in_thread=True)  # not the user's own call of the model
            try:
                self.target(**inputs)
            except _Given as given:
                return given.embeddings
        raise SettingError(f"{type(self.target).__name__} does not ask its language model")

    def prompt(self, context: str = "") -> list[int]:
        """The last token of the prompt; those before it stand in what :meth:`encode` returns."""
        if self._last is None:
            ids = self._inputs(torch.zeros(self.sample_rate // 5, device="cpu"))["input_ids"]
            self._last = int(ids[0, -1])
        return [self._last]

    def passes(self, encoded: Encoded, cache: CrossCache | None = None) -> Passes:
        return PromptPasses(self.target, encoded.hidden_states)

    def text(self, tokens: Sequence[int]) -> str:
        if self._asked.read is None:
            return super().text(tokens)
        spoken = self._spoken(tokens)
        return str(self._processor().decode([spoken], skip_special_tokens=True, **self._asked.read)[0]).strip()

    def words(self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int]) -> list[Word]:
        return spread(self.text(tokens), encoded.seconds)


class _Given(Exception):
    """The language model was asked: nothing behind it has to run."""

    def __init__(self, embeddings: torch.Tensor) -> None:
        super().__init__()
        self.embeddings = embeddings


class PromptPasses:
    """A language model behind embeddings `[1, L, D]`, which its first pass reads."""

    def __init__(self, model: Any, states: torch.Tensor) -> None:
        self.model, self.states = model, states
        self.cache = DynamicCache()
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits `[1, n, V]` after each of these tokens."""
        embeddings = self.model.get_input_embeddings()(torch.tensor([list(tokens)], device=self.states.device))
        if not self.cache.get_seq_length():
            embeddings = torch.cat([self.states, embeddings], 1)
        kept = {"logits_to_keep": len(tokens)} if self._keeps else {}
        output = self.model(inputs_embeds=embeddings, **cached(self.cache), use_cache=True, **kept)
        return output.logits[:, -len(tokens) :]

    def forget(self, count: int) -> None:
        """Take back the last tokens."""
        self.cache.crop(-count)
